from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from test_problem import split

from tasks.gaussian_process import prediction
from tasks.gaussian_process.experiment import Architecture
from tasks.gaussian_process.layers import Inducing
from tasks.gaussian_process.prediction import judge, predict
from tasks.gaussian_process.problem import stack_splits
from tasks.gaussian_process.streams import SeedStreams
from tasks.gaussian_process.warmstart import gaussian_model


def made(task: str = "regression"):
    problem = stack_splits([split(0, task), split(1, task)])
    return problem, gaussian_model(problem, Architecture(inducing=6), [0, 1])


def test_scores_are_those_of_a_loop_over_draws():
    problem, model = made()
    mean, variance = predict(model, problem.x_test, 20, SeedStreams([0, 1]))
    assert mean.shape == variance.shape == (2, 20, 10, 1)
    found = judge(model, problem, 20, SeedStreams([0, 1]))
    for r in range(2):
        y, sd = problem.y_test[r].numpy(), problem.y_sd[r]
        density = np.mean([stats.norm.pdf(y, mean[r, s, :, 0], variance[r, s, :, 0] ** 0.5) for s in range(20)], axis=0)
        assert found["nll"][r] == pytest.approx(-np.log(density / sd).mean(), rel=1e-6)
        assert found["rmse"][r] == pytest.approx(sd * np.sqrt(((mean[r].mean(0)[:, 0] - y) ** 2).mean()), rel=1e-6)
        assert found["rmse_sd"][r] == pytest.approx(found["rmse"][r] / sd)


def test_noise_is_part_of_the_prediction():
    problem, model = made()
    _, before = predict(model, problem.x_test, 3, SeedStreams([0, 1]))
    model.likelihood.log_variance.data += np.log(2.0)
    _, after = predict(model, problem.x_test, 3, SeedStreams([0, 1]))
    np.testing.assert_allclose(after - before, 0.1, rtol=1e-4)


def test_rows_may_come_in_parts(monkeypatch):
    problem, model = made()
    values = [Inducing(torch.zeros(2, 4, 6, layer.outputs)) for layer in model.layers]
    whole = predict(model, problem.x_test, 4, SeedStreams([0, 1]), values)
    monkeypatch.setattr(prediction, "ROWS_AT_ONCE", 3)
    parts = predict(model, problem.x_test, 4, SeedStreams([0, 1]), values)
    np.testing.assert_allclose(whole[0], parts[0], atol=1e-6)  # zero values: a zero mean whatever the hidden noise


def test_classes_are_judged():
    problem, model = made("classification")
    found = judge(model, problem, 8, SeedStreams([0, 1]))
    assert set(found) == {"accuracy", "nll", "outlying"}
    assert 0.8 < found["nll"].mean() < 1.6  # near log 3 before training


def test_draws_that_run_away_are_counted():
    problem, model = made()
    values = [Inducing(torch.zeros(2, 4, 6, layer.outputs)) for layer in model.layers]
    values[-1].values[0, 1] = 1e5
    found = judge(model, problem, 4, SeedStreams([0, 1]), values)
    assert found["outlying"].tolist() == [0.25, 0.0]


def test_no_draws_are_refused():
    problem, model = made()
    with pytest.raises(ValueError, match="draws must be at least 1, got 0"):
        predict(model, problem.x_test, 0, SeedStreams([0, 1]))
