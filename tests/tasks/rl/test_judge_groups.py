import numpy as np
import pandas as pd
import pytest

from tasks.common.node import NullLog
from tasks.rl.judge_groups import JudgeGroupsParams, judge_groups
from tasks.rl.set_advantages import set_advantages


def table(tmp_path, suffix="csv", groups=3, size=8):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"group": np.tile([f"p{g}" for g in range(groups)], size), "return": rng.random(groups * size)})
    frame["signature"] = rng.choice(["left", "right", "round"], groups * size)
    path = tmp_path / f"rollouts.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    return path, frame


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rollouts_get_the_advantages_of_the_library(tmp_path, suffix):
    path, frame = table(tmp_path, suffix)
    out = tmp_path / f"out.{suffix}"
    summary = judge_groups(JudgeGroupsParams(rollouts=path, seed=3), out, NullLog())
    found = pd.read_csv(out) if suffix == "csv" else pd.read_parquet(out)
    ordered = frame.sort_values("group", kind="stable")
    expected = set_advantages(
        ordered["return"].to_numpy().reshape(3, 8), ordered["signature"].to_numpy().reshape(3, 8), np.random.default_rng(3)
    )
    np.testing.assert_allclose(found.sort_values("group", kind="stable")["advantage"].to_numpy().reshape(3, 8), expected.advantage)
    assert summary["groups"] == 3
    assert summary["rollouts_per_group"] == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"signature": "kind"}, "has no column kind"),
        ({"set_size": 9}, "set_size must lie below the 8"),
        ({"set_size": 8}, "teach nothing"),
        ({"signature": "gaps"}, "empty in 1 rows"),
        ({"reward": "signature"}, "must hold numbers"),
        ({"reward": "big"}, r"\[0, 1\]"),
        ({"device": "cuda"}, "device must be 'cpu'"),
        ({"group": "uneven"}, "equally many"),
    ],
)
def test_tables_that_make_no_sense_are_refused(tmp_path, change, message):
    path, frame = table(tmp_path)
    gaps = frame["signature"].mask(frame.index == 0)
    frame.assign(big=2.0, gaps=gaps, uneven=["a"] + ["b"] * (len(frame) - 1)).to_csv(path, index=False)
    with pytest.raises(ValueError, match=message):
        judge_groups(JudgeGroupsParams(rollouts=path, **change), tmp_path / "out.csv", NullLog())
