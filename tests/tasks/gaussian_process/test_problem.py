from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tasks.gaussian_process.problem import inducing_inputs, stack_splits
from tasks.gaussian_process.splits import standardised_split


def split(seed: int = 0, task: str = "regression", n: int = 40):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 2))
    y = rng.integers(0, 3, n) if task == "classification" else 3 * x[:, 0] + rng.standard_normal(n)
    classes = 3 if task == "classification" else 0
    return standardised_split(x, y, np.arange(30), np.arange(30, n), task, classes)


def test_splits_keep_their_rows_and_units():
    splits = [split(0), split(1)]
    problem = stack_splits(splits)
    for r, one in enumerate(splits):
        np.testing.assert_allclose(problem.x[r], one.x_train, rtol=1e-6)
        np.testing.assert_allclose(problem.y_test[r], one.y_test, rtol=1e-6)
        assert problem.y_sd[r] == one.y_sd
    assert (problem.rows, problem.outputs, problem.likelihood) == (30, 1, "gaussian")


def test_classes_are_whole_numbers():
    problem = stack_splits([split(task="classification")])
    assert problem.y.dtype == torch.long
    assert (problem.outputs, problem.likelihood) == (3, "softmax")


def test_kmeans_centres_represent_rows_better_than_random_ones():
    x = stack_splits([split(0), split(1)]).x
    errors = {}
    for start in ("kmeans", "random"):
        z = inducing_inputs(x, 5, [0, 1], start)
        assert z.shape == (2, 5, 2)
        errors[start] = torch.cdist(x, z).min(2).values.square().mean()
    assert errors["kmeans"] < errors["random"]


def test_random_inputs_are_rows_and_depend_on_their_own_seed():
    x = stack_splits([split(0), split(0)]).x
    both, alone = inducing_inputs(x, 4, [0, 7], "random"), inducing_inputs(x[1:], 4, [7], "random")
    assert torch.equal(both[1], alone[0])
    assert torch.cdist(both[0], x[0]).min(1).values.max().item() == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: inducing_inputs(x, 31, [0]), "1 to 30, the training rows, got 31"),
        (lambda x: inducing_inputs(x, 0, [0]), "got 0"),
        (lambda x: inducing_inputs(x, 3, [0, 1]), "one per replica, got 2 for 1"),
        (lambda x: inducing_inputs(x, 3, [0], "grid"), "unknown start 'grid'"),
        (lambda x: stack_splits([]), "at least one split"),
        (lambda x: stack_splits([split(), split(n=35)]), "must agree in shape"),
        (lambda x: stack_splits([split(), split(task="classification")]), "must agree in shape and task"),
        (lambda x: stack_splits([replace(split(), x_train=np.full((30, 2), np.nan))]), "finite numbers"),
    ],
)
def test_impossible_problems_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(stack_splits([split()]).x)
