"""The stage of value-based baselines: iterates on the way, expectations at recorded starts."""

import numpy as np
import pytest

from tasks.common.formats import read_parquet
from tasks.common.node import Inputs, NullLog
from tasks.offline_rl.policies import read_policies
from tasks.offline_rl.sparse_data import load_learning_data
from tasks.offline_rl.value_arms import METHODS, ValueParams, train

pytestmark = pytest.mark.xdist_group("contrastive")


def test_the_short_budget_is_an_iterate_of_the_long_run(contrastive_smoke, tmp_path):
    prepared = contrastive_smoke[0].folder / "prepare"
    small = {"hidden": (6,), "batch": 8}
    found = {}
    for name, config in (("long", {**small, "updates": 6, "checkpoints": (3,)}), ("short", {**small, "updates": 3})):
        (tmp_path / name).mkdir()
        train(ValueParams(seeds=2, iql={"iql": config}), Inputs({"prepare": prepared}), tmp_path / name, NullLog())
        found[name] = read_policies(tmp_path / name / "medium.safetensors")
    assert sorted(found["long"]) == ["iql/3", "iql/6"]
    np.testing.assert_array_equal(found["long"]["iql/3"].weights[0], found["short"]["iql/3"].weights[0])
    table = read_parquet(tmp_path / "long" / "expected.parquet")
    for s in range(2):
        starts = len(load_learning_data(prepared, "medium", s).positive)
        assert (table[table["seed"] == s].groupby("updates").size() == starts).all()


def test_every_method_is_trained_in_the_smoke_profile(contrastive_smoke):
    run = contrastive_smoke[0]
    names = {name.split("/")[0] for name in read_policies(run.folder / "train-value" / "medium.safetensors")}
    assert names == {*METHODS, "iql_mean"}
    assert set(run.metrics["train-value"]) >= {f"{arm}.expected.medium" for arm in names}
