"""What learners see: units, signs, neighbours, split without leakage."""

import doctest

import numpy as np
import pytest
from sparse_factory import episodes

from tasks.offline_rl import learning_data as module
from tasks.offline_rl.episodes import NoPositiveTrajectories
from tasks.offline_rl.learning_data import DataStack, hold_out, learning_data, read_neighbours, write_neighbours


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(module).failed == 0


def test_states_are_standardised_together_and_actions_fill_the_unit_box():
    data = episodes([6, 5, 4], [True, False, True], box=2.0)
    ready = learning_data(data)
    np.testing.assert_allclose(ready.obs.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(ready.obs.std(0), 1, atol=1e-5)
    np.testing.assert_allclose(ready.action, data.action / 2, atol=1e-6)
    assert ready.positive.tolist() == [[0, 6], [11, 4]]
    assert ready.negative.tolist() == [[6, 5]]


def test_neighbours_are_failures_and_only_successes_have_them():
    ready = learning_data(episodes([6, 5, 4, 7], [True, False, True, False]))
    rows, failed = ready.positive_rows, ready.negative_rows
    assert set(ready.neighbour[rows]) <= set(failed)
    assert (ready.neighbour[failed] == -1).all()
    slow = [failed[np.square(ready.obs[failed].astype(float) - ready.obs[r].astype(float)).sum(1).argmin()] for r in rows]
    assert (ready.neighbour[rows] == slow).mean() > 0.9  # single precision may swap near ties


def test_without_failures_there_are_no_neighbours():
    ready = learning_data(episodes([6, 5], [True, True]))
    assert len(ready.negative) == len(ready.negative_rows) == 0
    assert (ready.neighbour == -1).all()


def test_next_actions_stop_at_the_end_of_an_episode_and_truncation_goes_on():
    ready = learning_data(episodes([3, 2], [True, False]))
    np.testing.assert_array_equal(ready.next_action[0], ready.action[1])
    assert ready.next_action[2].tolist() == [0, 0]
    assert ready.has_next.tolist() == [1, 1, 0, 1, 0]
    assert ready.continuation.tolist() == [1, 1, 0, 1, 1]
    np.testing.assert_allclose(ready.discounted(0.5), [0.25, 0.5, 1, 0, 0])


def test_held_out_trajectories_are_of_both_signs_and_never_trained_on():
    data = episodes([3] * 40, [True] * 10 + [False] * 30)
    train, held = hold_out(data, 0.2, np.random.default_rng(0))
    assert not set(train) & set(held)
    assert len(train) + len(held) == 40
    assert (data.returns[held] > 0).sum() == 2
    assert len(held) == 8
    rows = set(map(bytes, data.take(held).obs))
    assert not rows & set(map(bytes, data.take(train).obs))


def test_a_single_success_is_kept_for_training():
    train, held = hold_out(episodes([3, 3], [True, False]), 0.9, np.random.default_rng(0))
    assert 0 in train
    assert held.tolist() == [1]
    with pytest.raises(ValueError, match="share"):
        hold_out(episodes([3], [True]), 1.0, np.random.default_rng(0))
    with pytest.raises(NoPositiveTrajectories):
        learning_data(episodes([3], [False]))


def test_what_is_kept_on_disk_makes_the_same_data(tmp_path):
    data = episodes([6, 5, 4], [True, False, True])
    ready = learning_data(data)
    write_neighbours(tmp_path / "n.npz", ready, np.arange(3), np.array([], int))
    train, held, neighbour = read_neighbours(tmp_path / "n.npz")
    assert train.tolist() == [0, 1, 2]
    assert len(held) == 0
    again = learning_data(data, neighbour=neighbour)
    np.testing.assert_array_equal(again.neighbour, ready.neighbour)


def test_a_stack_shifts_rows_and_refuses_other_dimensions():
    parts = [learning_data(episodes([6, 5], [True, False], seed=s)) for s in (0, 1)]
    stack = DataStack(parts)
    np.testing.assert_array_equal(stack.obs[11:].numpy(), parts[1].obs)
    assert stack.spans(1, "positive")[0].tolist() == [11]
    assert stack.neighbour[11].item() == parts[1].neighbour[0] + 11
    assert stack.neighbour[8].item() == -1
    with pytest.raises(ValueError, match="equal numbers"):
        DataStack([parts[0], learning_data(episodes([3], [True], d=5))])
