from __future__ import annotations

import pytest
import torch
from small_concrete import COMMON
from test_problem import split

from tasks.common.node import NullLog
from tasks.gaussian_process import speed
from tasks.gaussian_process.diffusion_bridge import BridgeParams
from tasks.gaussian_process.problem import stack_splits
from tasks.gaussian_process.speed import SpeedParams, evaluate, rounds_of, timed_models, training_step

PARAMS = SpeedParams(**COMMON, bridge=BridgeParams(steps=2, hidden=8, amortiser=8), rounds=2, timed_steps=1)


def test_every_arm_has_a_time_and_a_ratio(small_inputs, tmp_path):
    metrics = evaluate(PARAMS, small_inputs, tmp_path, NullLog())
    for arm in ("dbvi", "mean_vector", "dbvi_2k", "dsvi"):
        assert metrics[f"{arm}.step_ratio.concrete"] > 0
        assert metrics[f"{arm}.step_ratio.concrete.n"] == 2
    assert metrics["ddvi.step_ms.concrete"] > 0


def test_ratios_are_taken_within_a_round(small_inputs, tmp_path, monkeypatch):
    # In the second round the machine is ten times slower for all: the ratio does not notice.
    monkeypatch.setattr(speed, "_measure", lambda item: [{"ddvi": 2.0, "dbvi": 3.0}, {"ddvi": 20.0, "dbvi": 30.0}])
    metrics = evaluate(PARAMS, small_inputs, tmp_path, NullLog())
    assert metrics["dbvi.step_ratio.concrete"] == metrics["dbvi.step_ratio.concrete.hi"] == 1.5
    assert metrics["dbvi.step_ms.concrete"] == 16.5


def test_steps_are_timed_in_turns_with_a_clock():
    now, calls = [0.0], []

    def step(name: str, seconds: float):
        def run():
            calls.append(name)
            now[0] += seconds

        return run

    rows = rounds_of({"a": step("a", 0.002), "b": step("b", 0.003)}, rounds=2, timed_steps=1, clock=lambda: now[0])
    assert rows[0] == pytest.approx({"a": 2.0, "b": 3.0})
    assert calls[-4:] == ["a", "b", "b", "a"]


def test_twice_the_steps_are_in_the_comparison_and_a_step_trains():
    problem = stack_splits([split(0)])
    models = timed_models(problem, PARAMS)
    assert models["dbvi_2k"].posteriors[0].params.steps == 4
    model = models["dbvi"]
    before = model.layers[0].z.detach().clone()
    training_step(model, problem, 16, 2)()
    assert not torch.equal(before, model.layers[0].z)


def test_impossible_rounds_are_refused():
    with pytest.raises(ValueError, match="greater than or equal to 2"):
        SpeedParams(rounds=1)
