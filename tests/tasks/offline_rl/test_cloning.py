"""Behaviour cloning: rows, least squares, company."""

import doctest

import numpy as np
import pytest
import torch
from sparse_factory import episodes

from tasks.offline_rl import cloning as module
from tasks.offline_rl.cloning import CHUNK, CloningConfig, RowSampler, clone_behaviour
from tasks.offline_rl.learning_data import DataStack, learning_data
from tasks.offline_rl.policies import policies_of
from tasks.offline_rl.stacked import generators_of


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(module).failed == 0


def test_it_learns_the_recorded_action_of_the_chosen_rows():
    data = episodes([40, 40], [True, False], a=1)
    signs = np.where(data.episode == 0, 0.6, -0.6)[:, None]
    ready = learning_data(type(data)(**{**{f: getattr(data, f) for f in data.__dataclass_fields__}, "action": signs}))
    for rows, expected in (("successes", 0.6), ("all", 0.0)):
        config = CloningConfig(rows=rows, updates=400, hidden=(), rate=0.02, checkpoints=1)
        found = clone_behaviour(DataStack([ready]), [0], [(0,)], config)
        mean = policies_of(found.weights[400], [ready]).act(np.zeros((1, 1, 3)) + ready.standardise.mean)[0, 0, 0]
        assert mean == pytest.approx(expected, abs=0.15)


def test_networks_of_a_stack_are_those_trained_alone():
    parts = [learning_data(episodes([10, 8], [True, False], seed=s)) for s in (0, 1)]
    config = CloningConfig(updates=5, batch=8, hidden=(6,), checkpoints=1, dropout=0.1)
    together = clone_behaviour(DataStack(parts), [0, 1], [(0,), (1,)], config).weights[5]
    alone = clone_behaviour(DataStack(parts[1:]), [0], [(1,)], config).weights[5]
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a[1], b[0], atol=2e-6, rtol=1e-4)


def test_rows_are_uniform_over_the_table_and_fresh():
    sampler = RowSampler([np.array([3, 5, 9])], 500, generators_of([(0,)]), "cpu")
    first, second = sampler(0), sampler(1)
    assert first.shape == (1, 500)
    assert not torch.equal(first, second)
    counts = np.bincount(torch.cat([sampler(i) for i in range(CHUNK)]).ravel().numpy(), minlength=10)
    assert set(np.flatnonzero(counts)) == {3, 5, 9}
    np.testing.assert_allclose(counts[[3, 5, 9]] / counts.sum(), 1 / 3, atol=0.01)
    with pytest.raises(ValueError, match="is empty"):
        RowSampler([np.array([], int)], 4, generators_of([(0,)]), "cpu")
