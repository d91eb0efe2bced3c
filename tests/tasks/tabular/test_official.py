"""Readers on 50-row files in the published layouts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tasks.common.node import Inputs, NullLog
from tasks.conformal.datasets import PrepareParams, prepare
from tasks.tabular.official import LAYOUTS, read_official

ROWS = 50


def numbers(columns: int) -> pd.DataFrame:
    return pd.DataFrame(np.random.default_rng(columns).random((ROWS, columns)) * 100)


def published(name: str) -> pd.DataFrame:
    if name.startswith("facebook"):
        return numbers(54)
    if name == "bio":
        return numbers(10).set_axis(["RMSD", *(f"F{i}" for i in range(1, 10))], axis=1)
    if name == "house":
        house = numbers(21)
        house.columns = pd.Index(["id", "date", "price", "bedrooms", "bathrooms", "sqft_living", *(f"other{i}" for i in range(15))])
        return house.assign(date="20141013T000000")
    meps = numbers(139).set_axis(["AGE", "RACE", "PCS42", "MCS42", "K6SUM42", *(f"D={i}" for i in range(134))], axis=1)
    meps.insert(60, "UTILIZATION_reg", np.arange(ROWS, dtype=float))
    return meps


def write(name: str, folder) -> pd.DataFrame:
    frame = published(name)
    frame.to_csv(folder / LAYOUTS[name].file, header=LAYOUTS[name].header, index=name == "meps_19")
    return frame


EXPECTED = {
    "facebook_1": (53, 53, 33),
    "facebook_2": (53, 53, 33),
    "bio": ("RMSD", 9, "F3"),
    "house": ("price", 18, "sqft_living"),
    "meps_19": ("UTILIZATION_reg", 139, "K6SUM42"),
}


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_target_features_and_privileged_column(name, tmp_path):
    frame = write(name, tmp_path)
    target, features, privileged = EXPECTED[name]
    table = read_official(name, tmp_path)
    np.testing.assert_allclose(table.target, frame[target])
    assert table.features.shape == (ROWS, features)
    assert table.privileged == str(privileged)
    np.testing.assert_allclose(table.features[table.privileged], frame[privileged])
    assert str(target) not in table.features.columns


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_another_layout_is_refused(name, tmp_path):
    write(name, tmp_path)
    path = tmp_path / LAYOUTS[name].file
    frame = pd.read_csv(path, header=0 if LAYOUTS[name].header else None)
    frame.iloc[:, :-1].to_csv(path, header=LAYOUTS[name].header, index=False)
    with pytest.raises(ValueError, match=f"columns, expected {LAYOUTS[name].columns}"):
        read_official(name, tmp_path)


def test_missing_target_file_and_unknown_name_are_named(tmp_path):
    frame = published("house").rename(columns={"price": "cost"})
    frame.to_csv(tmp_path / "kc_house_data.csv", index=False)
    with pytest.raises(ValueError, match="has no column 'price'"):
        read_official("house", tmp_path)
    published("meps_19").rename(columns={"K6SUM42": "K6"}).to_csv(tmp_path / "meps_19_reg.csv")
    with pytest.raises(ValueError, match="has no column 'K6SUM42'"):
        read_official("meps_19", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"CASP.csv is missing; put the file CASP.csv there"):
        read_official("bio", tmp_path)
    with pytest.raises(KeyError, match="unknown data set 'boston'; known: bio, facebook_1"):
        read_official("boston", tmp_path)


def test_the_gpu_profiles_sets_can_be_prepared(tmp_path):
    for name in LAYOUTS:
        write(name, tmp_path)
    metrics = prepare(PrepareParams(data=tuple(LAYOUTS), folder=str(tmp_path), splits=2, rows=100), Inputs(), tmp_path / "out", NullLog())
    assert {metrics[f"rows.{name}"] for name in LAYOUTS} == {float(ROWS)}
    assert metrics["features.house"] == 17.0  # without target, keys and the privileged column
