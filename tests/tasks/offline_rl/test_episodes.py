"""Episodes with continuous actions: what is refused, what is kept, how they are split."""

import doctest
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sparse_factory import episodes

from tasks.offline_rl import episodes as module
from tasks.offline_rl.episodes import (
    NoNegativeTrajectories,
    NoPositiveTrajectories,
    check_sparse,
    read_episodes,
    split_by_return,
    write_episodes,
)


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(module).failed == 0


def test_written_episodes_come_back_exactly_and_the_manifest_describes_them(tmp_path):
    data = replace(episodes([4, 3, 5], [True, False, True]), about={"environment": "E-v0"})
    write_episodes(tmp_path / "d.parquet", data)
    back = read_episodes(tmp_path / "d.parquet")
    assert back.digest() == data.digest()
    assert back.about["environment"] == "E-v0"
    assert back.about["sha256"] == data.digest()
    assert back.about["success_share"] == pytest.approx(2 / 3)
    frame = pd.read_parquet(tmp_path / "d.parquet")
    assert frame["t"].tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4]


def test_steps_out_of_order_in_the_file_are_refused(tmp_path):
    write_episodes(tmp_path / "d.parquet", episodes([3], [True]))
    frame = pd.read_parquet(tmp_path / "d.parquet")
    frame["t"] = [0, 2, 1]
    frame.to_parquet(tmp_path / "d.parquet")
    with pytest.raises(ValueError, match="t = 0, 1, 2"):
        read_episodes(tmp_path / "d.parquet")
    frame.drop(columns="reward").to_parquet(tmp_path / "d.parquet")
    with pytest.raises(ValueError, match="lacks the columns \\['reward'\\]"):
        read_episodes(tmp_path / "d.parquet")


def test_eta_splits_by_return_and_both_kinds_of_emptiness_are_named():
    data = episodes([4, 3, 5], [True, False, True])
    positive, negative = split_by_return(data)
    assert positive.tolist() == [0, 2]
    assert negative.tolist() == [1]
    with pytest.raises(NoPositiveTrajectories, match=r"above eta = 1\.0, the highest is 1\.0") as caught:
        split_by_return(data, eta=1.0)
    assert caught.value.eta == 1.0
    assert "undefined: no failures" in str(NoNegativeTrajectories(0.0, "CPL"))


def test_taking_episodes_keeps_their_steps_together():
    data = episodes([4, 3, 5], [True, False, True])
    part = data.take(np.array([2, 0]))
    assert part.lengths.tolist() == [5, 4]
    np.testing.assert_array_equal(part.obs[:5], data.obs[7:])
    assert part.episode.tolist() == [0] * 5 + [1] * 4


def test_discounted_returns_equal_the_sum_written_out():
    data = replace(episodes([4, 3], [True, False]), reward=np.array([0.5, 0, 0, 1.0, 0, 2.0, 0]))
    slow = []
    for start, length in zip(data.starts, data.lengths, strict=True):
        rewards = data.reward[start : start + length]
        slow += [sum(0.9**j * rewards[i + j] for j in range(length - i)) for i in range(length)]
    np.testing.assert_allclose(data.discounted(0.9), slow)


def test_a_sparse_reward_is_one_at_the_last_step_at_most():
    data = episodes([4, 3], [True, False])
    check_sparse(data)
    for reward in ([0, 1, 0, 1, 0, 0, 0], [0, 0, 0, 0.5, 0, 0, 0]):
        with pytest.raises(ValueError, match="1 rows differ"):
            check_sparse(replace(data, reward=np.array(reward, float)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": np.full((7, 3), np.nan)}, "obs holds 21 numbers that are not finite"),
        ({"episode": np.array([1, 1, 1, 1, 0, 0, 0])}, "must not decrease"),
        ({"terminated": np.array([0, 1, 0, 1, 0, 0, 0], bool)}, "goes on after terminated"),
        ({"action": np.full((7, 2), 1.5)}, r"must lie in the box, got 1\.5"),
        ({"action": np.zeros((7, 3))}, "actions have 3 coordinates"),
        ({"action": np.zeros((6, 2))}, "action must be"),
        ({"next_obs": np.zeros((7, 3))}, "next_obs must equal obs"),
        ({"next_obs": np.zeros((7, 2))}, "obs and next_obs"),
        ({"reward": np.zeros(6)}, "reward must have shape"),
        ({"low": np.ones(2)}, "must lie in the box"),
    ],
)
def test_bad_episodes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(episodes([4, 3], [True, False]), **change)
