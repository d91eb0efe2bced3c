from __future__ import annotations

import numpy as np
import torch
from small_concrete import COMMON

from tasks.common.node import NullLog
from tasks.gaussian_process.experiment import Work, read_warm
from tasks.gaussian_process.warmstart import WarmstartParams, gaussian_model, warm_state, warmstart


def test_stage_saves_what_training_left_and_reports_its_bound(small_inputs, tmp_path):
    params = WarmstartParams(**COMMON, warm_steps=20)
    metrics = warmstart(params, small_inputs, tmp_path, NullLog())
    problem = Work(small_inputs["prepare"], tmp_path, "concrete", params).problem()
    state, fit = warm_state(problem, params.architecture, params.fit, [0, 1], 20)
    saved = read_warm(tmp_path, "concrete", 2)
    assert all(torch.equal(saved[name], value) for name, value in state.items())
    assert metrics["warm.elbo.concrete"] == np.mean(fit.final()["elbo"])
    assert not any("posteriors" in name for name in saved)


def test_more_steps_give_a_better_start(small_inputs):
    params = WarmstartParams(**COMMON)
    problem = Work(small_inputs["prepare"], small_inputs["warmstart"], "concrete", params).problem()
    short, long = (warm_state(problem, params.architecture, params.fit, [0, 1], steps) for steps in (1, 60))
    assert (long[1].elbo[-1] > short[1].elbo[-1]).all()
    start = dict(gaussian_model(problem, params.architecture, [0, 1]).named_parameters())
    assert not torch.equal(long[0]["layers.0.z"], start["layers.0.z"])
