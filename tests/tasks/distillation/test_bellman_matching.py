"""Distilled transitions of the stages."""

import numpy as np
import pytest

from tasks.distillation.bellman_matching import BellmanMatchingParams, TransitionSet, read_transition_sets, write_transition_sets
from tasks.offline_rl.transitions import TdBatch

pytestmark = pytest.mark.xdist_group("distillation")


def test_the_stage_is_deterministic(smoke):
    (first, _, _), (second, _, _) = smoke
    assert first["train-bellman"] == second["train-bellman"]
    assert first["train-bellman"]


def test_every_arm_has_its_sets_and_comes_nearer(smoke, parameters):
    sets = read_transition_sets(smoke[0][2] / "train-bellman" / "sets.parquet")
    params = parameters("smoke")["train-bellman"]
    for name, arm in params.arms.items():
        own = [s for s in sets if s.arm == name]
        assert {(s.environment, s.seed, len(s.batch)) for s in own} == {
            (e, seed, m) for e in params.environments for seed in range(params.seeds) for m in arm.sizes or params.sizes
        }
        assert np.mean([s.end for s in own]) < np.mean([s.start for s in own])


def test_transition_sets_survive_a_round_trip(tmp_path):
    batch = TdBatch(np.ones((2, 3)), np.array([0, 1]), np.zeros(2), np.zeros((2, 3)), np.array([0.5, 1.0]))
    write_transition_sets(tmp_path / "a.parquet", [TransitionSet("cartpole", 3, "syn", batch, 1.0, 0.5)])
    (again,) = read_transition_sets(tmp_path / "a.parquet")
    assert (again.environment, again.seed, again.arm, again.end) == ("cartpole", 3, "syn", 0.5)
    for column, other in zip(again.batch, batch, strict=True):
        np.testing.assert_array_equal(column, other)


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ({"bank": "splines"}, "asks for bank 'splines'"),
        ({"k": 2000}, "asks for 2000 predictors; its bank 'rff' holds 1000"),
        ({"sizes": [7]}, r"asks for sizes \[7\]"),
    ],
)
def test_arms_that_ask_for_what_is_not_there_are_refused(arm, message):
    with pytest.raises(ValueError, match=message):
        BellmanMatchingParams(arms={"a": arm})
