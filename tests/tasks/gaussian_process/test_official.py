"""Readers on 20-row files in the published layouts."""

from __future__ import annotations

import gzip
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.io import savemat

from tasks.common.assets import AssetMissing
from tasks.common.node import Inputs, NullLog
from tasks.gaussian_process import official
from tasks.gaussian_process.datasets import PrepareParams, load_split, prepare
from tasks.gaussian_process.official import LAYOUTS, read_frey, read_images, read_table

ROWS, TEST_ROWS = 20, 4
HEADERS = {
    "uci_concrete": [f"component {i} (kg in a m^3 mixture)" for i in range(8)] + ["Concrete compressive strength(MPa, megapascals) "],
    "energy": [*(f"X{i}" for i in range(1, 9)), "Y1", "Y2"],
    "power": ["AT", "V", "AP", "RH", "PE"],
    "protein": ["RMSD", *(f"F{i}" for i in range(1, 10))],
    "airline": ["Year", "UniqueCarrier", *LAYOUTS["airline"].keep],
}
# Features, and the columns that hold target and first feature.
EXPECTED = {
    "uci_boston": (13, 13, 0),
    "uci_concrete": (8, 8, 0),
    "energy": (8, 8, 0),
    "power": (4, 4, 0),
    "yacht": (6, 6, 0),
    "kin8nm": (8, 8, 0),
    "protein": (9, 0, 1),
    "naval": (16, 16, 0),
    "qsar": (8, 8, 0),
    "yearmsd": (90, 0, 1),
    "airline": (8, 10, 2),
    "susy": (18, 0, 1),
    "higgs": (28, 0, 1),
}


def published(name: str) -> pd.DataFrame:
    columns = LAYOUTS[name].columns + (2 if name == "airline" else 0)
    frame = pd.DataFrame(np.random.default_rng(columns).random((ROWS, columns)).round(6) * 100)
    if LAYOUTS[name].task == "classification":
        frame[0] = np.arange(ROWS) % 2
    if name in HEADERS:
        frame.columns = HEADERS[name]
    return frame.assign(UniqueCarrier="WN") if name == "airline" else frame


def write(name: str, folder, frame: pd.DataFrame) -> None:
    layout, path = LAYOUTS[name], folder / LAYOUTS[name].file
    if name == "uci_concrete":  # the old binary format, which nothing here can write; the reader looks at the content
        frame.to_excel(path, index=False, engine="openpyxl")
    elif layout.separator == "excel":
        padded = pd.concat([frame, pd.DataFrame(np.nan, index=range(2), columns=frame.columns)])  # as the published sheet has them
        padded.to_excel(path, index=False)
    elif layout.separator == "arff":
        head = "@relation kin8nm\n" + "".join(f"@attribute theta{i} real\n" for i in range(9)) + "@data\n"
        path.write_text(head + frame.to_csv(header=False, index=False))
    elif layout.separator == r"\s+":
        path.write_text("\n".join(" " + "   ".join(map(str, row)) for row in frame.to_numpy()) + " \n\n")
    else:
        frame.to_csv(path, header=layout.header, index=False, sep=layout.separator)


@pytest.fixture(autouse=True)
def _small_test_sets(monkeypatch):
    """Files of 20 rows whose last 4 are for testing stand for files whose last 500,000 are."""
    for name, layout in LAYOUTS.items():
        if layout.test_rows:
            monkeypatch.setitem(LAYOUTS, name, replace(layout, test_rows=TEST_ROWS))


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_features_and_target_are_the_right_columns(name, tmp_path):
    frame = published(name)
    write(name, tmp_path, frame)
    rows = read_table(name, tmp_path)
    features, target, first = EXPECTED[name]
    assert rows.features.shape == (ROWS, features)
    np.testing.assert_allclose(rows.target, frame.iloc[:, target].astype(float))
    np.testing.assert_allclose(rows.features[:, 0], frame.iloc[:, first].astype(float))
    assert not any(np.array_equal(rows.target, column) for column in rows.features.T)
    assert rows.test_rows == (TEST_ROWS if name in ("yearmsd", "susy", "higgs") else 0)


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_another_layout_a_gap_and_a_damaged_file_are_refused(name, tmp_path):
    frame, path = published(name), tmp_path / LAYOUTS[name].file
    write(name, tmp_path, frame.iloc[:, :-1])
    with pytest.raises(ValueError, match=r"columns|cannot be read"):
        read_table(name, tmp_path)
    if name != "airline":  # flights that were cancelled have gaps
        gap = frame.astype(object)
        gap.iloc[3, 2] = "?"
        write(name, tmp_path, gap)
        with pytest.raises(ValueError, match=r"holds something else than numbers|cannot be read"):
            read_table(name, tmp_path)
    path.write_bytes(b"\x1f\x8b\x00 nothing of the kind")
    with pytest.raises(ValueError, match=r"cannot be read|columns, expected|has no column"):
        read_table(name, tmp_path)


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_a_missing_file_says_where_to_get_it(name, tmp_path):
    with pytest.raises(AssetMissing, match=r"is missing; install it with: get .* from https?://"):
        read_table(name, tmp_path)


def test_the_old_excel_format_is_asked_of_its_reader(tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setattr(pd, "read_excel", lambda path, header: asked.update(path=path, header=header) or published("uci_concrete"))
    (tmp_path / "Concrete_Data.xls").write_bytes(b"")
    assert read_table("uci_concrete", tmp_path).features.shape == (ROWS, 8)
    assert asked == {"path": tmp_path / "Concrete_Data.xls", "header": 0}


def test_kin8nm_is_read_as_csv_where_there_is_no_arff(tmp_path):
    frame = published("kin8nm").set_axis([*(f"theta{i}" for i in range(1, 9)), "y"], axis=1)
    frame.to_csv(tmp_path / "kin8nm.csv", index=False)
    rows = read_table("kin8nm", tmp_path)
    np.testing.assert_allclose(rows.target, frame["y"])
    assert rows.features.shape == (ROWS, 8)


def test_cancelled_flights_go_and_other_columns_too(tmp_path):
    frame = published("airline")
    frame.loc[5, "ArrDelay"] = np.nan
    write("airline", tmp_path, frame)
    assert read_table("airline", tmp_path).features.shape == (ROWS - 1, 8)


def test_labels_gaps_and_cut_files_are_refused(tmp_path):
    frame = published("susy")
    write("susy", tmp_path, frame.assign(**{"0": 2}).set_axis(range(20), axis=1).drop(columns=0).iloc[:, [18, *range(18)]])
    with pytest.raises(ValueError, match=r"must have labels 0 and 1 in column 0, got \[2.0\]"):
        read_table("susy", tmp_path)
    write("susy", tmp_path, frame.iloc[:TEST_ROWS])
    with pytest.raises(ValueError, match="has 4 rows, of which the last 4 are for testing; it is cut short"):
        read_table("susy", tmp_path)
    frame.iloc[0, 3] = np.nan
    write("susy", tmp_path, frame)
    with pytest.raises(ValueError, match="has 1 gaps"):
        read_table("susy", tmp_path)
    with pytest.raises(KeyError, match="unknown data set 'iris'; known: airline, energy"):
        read_table("iris", tmp_path)
    with pytest.raises(KeyError, match="unknown data set 'svhn'; known: cifar10, fashion_mnist, mnist"):
        read_images("svhn", tmp_path)


def write_idx(folder, packed: bool) -> dict[str, np.ndarray]:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    arrays = {}
    for part, n in (("train", 20), ("t10k", 6)):
        arrays[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        arrays[f"{part}-labels-idx1-ubyte"] = (np.arange(n) % 10).astype(np.uint8)
    for name, array in arrays.items():
        content = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    return arrays


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_idx_images(name, packed, tmp_path):
    arrays = write_idx(tmp_path / name, packed)
    rows = read_images(name, tmp_path)
    assert (rows.features.shape, rows.test_rows, rows.classes) == ((26, 784), 6, 10)
    np.testing.assert_array_equal(rows.features[20:], arrays["t10k-images-idx3-ubyte"].reshape(6, 784))
    np.testing.assert_array_equal(rows.target[:20], np.arange(20) % 10)


def test_fashion_mnist_is_found_where_debian_installs_it(tmp_path, monkeypatch):
    monkeypatch.setattr(official, "DEBIAN", tmp_path / "debian")
    write_idx(tmp_path / "debian", packed=True)
    assert read_images("fashion_mnist", tmp_path / "other").features.shape == (26, 784)
    with pytest.raises(AssetMissing, match=r"train-images-idx3-ubyte is missing.*yann.lecun.com"):
        read_images("mnist", tmp_path / "other")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: b"not gzip", "is damaged"),
        (lambda content: gzip.compress(b"\0\0\r\3" + gzip.decompress(content)[4:]), "is no IDX file of bytes with 3 axes"),
        (lambda content: gzip.compress(gzip.decompress(content)[:-1]), r"holds 15679 bytes, its head promises \(20, 28, 28\)"),
        (lambda content: content[:-20], "is damaged"),
    ],
)
def test_damaged_images_are_refused(damage, message, tmp_path):
    write_idx(tmp_path / "mnist", packed=True)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=message):
        read_images("mnist", tmp_path)


def test_images_and_labels_must_be_as_many(tmp_path):
    write_idx(tmp_path / "mnist", packed=True)
    folder = tmp_path / "mnist"
    (folder / "train-labels-idx1-ubyte.gz").write_bytes((folder / "t10k-labels-idx1-ubyte.gz").read_bytes())
    with pytest.raises(ValueError, match="mnist has 20 images and 6 labels"):
        read_images("mnist", tmp_path)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_cifar_features(suffix, tmp_path):
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.normal(size=(20, 5)).astype(np.float32),
        "y_train": np.arange(20) % 10,
        "x_test": rng.normal(size=(4, 5)).astype(np.float32),
        "y_test": np.arange(4),
    }
    path = tmp_path / f"cifar10_resnet20{suffix}"
    np.savez(path, **arrays) if suffix == ".npz" else save_file(arrays, path)
    rows = read_images("cifar10", tmp_path)
    np.testing.assert_array_equal(rows.features, np.concatenate([arrays["x_train"], arrays["x_test"]]))
    assert rows.test_rows == 4
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="is damaged or lacks one of"):
        read_images("cifar10", tmp_path)
    path.unlink()
    with pytest.raises(AssetMissing, match=r"train a ResNet-20 on CIFAR-10 and save .*which must be trained first"):
        read_images("cifar10", tmp_path)


def test_frey_faces(tmp_path):
    faces = np.random.default_rng(0).integers(0, 256, (560, 1965), dtype=np.uint8)
    savemat(tmp_path / "frey_rawface.mat", {"ff": faces})
    np.testing.assert_array_equal(read_frey(tmp_path), faces.T)
    savemat(tmp_path / "frey_rawface.mat", {"ff": faces[:100]})
    with pytest.raises(ValueError, match=r"must be \(560, 1965\), got \(100, 1965\)"):
        read_frey(tmp_path)
    (tmp_path / "frey_rawface.mat").write_bytes(b"no matrix")
    with pytest.raises(ValueError, match="is damaged or holds no matrix"):
        read_frey(tmp_path)
    (tmp_path / "frey_rawface.mat").unlink()
    with pytest.raises(AssetMissing, match=r"frey_rawface.mat is missing.*nyu.edu"):
        read_frey(tmp_path)


def test_the_gpu_profiles_sets_can_be_prepared(tmp_path):
    for name in LAYOUTS:
        write(name, tmp_path, published(name))
    write_idx(tmp_path / "mnist", packed=True)
    params = PrepareParams(data=(*LAYOUTS, "mnist"), folder=str(tmp_path), seeds=2, rows={"higgs": 10}, components={"mnist": 3})
    metrics = prepare(params, Inputs(), tmp_path / "out", NullLog())
    assert {name: metrics[f"features.{name}"] for name in LAYOUTS} == {name: features for name, (features, _, _) in EXPECTED.items()}
    assert (metrics["rows.higgs"], metrics["test_rows.higgs"], metrics["test_rows.yearmsd"]) == (10.0, 4.0, 4.0)
    one, two = load_split(tmp_path / "out", "yearmsd", 0), load_split(tmp_path / "out", "yearmsd", 1)
    np.testing.assert_array_equal(one.x_test, two.x_test)
    np.testing.assert_allclose(one.in_original_units(one.y_test), published("yearmsd").iloc[-4:, 0])
    assert load_split(tmp_path / "out", "mnist", 0).x_train.shape == (20, 3)
