from __future__ import annotations

import numpy as np
import pytest
from kept_log import KeptLog
from scipy import stats

from tasks.common.formats import read_parquet
from tasks.common.node import Inputs, NullLog
from tasks.gaussian_process.datasets import PrepareParams, prepare
from tasks.gaussian_process.diffusion_bridge import BridgeParams
from tasks.gaussian_process.experiment import Architecture, SetParams
from tasks.gaussian_process.sghmc import SghmcParams
from tasks.gaussian_process.step_function import StepParams, evaluate, wasserstein

SMALL = StepParams(
    data={"step": SetParams(seeds=2, steps=80)},
    architecture=Architecture(inducing=8),
    bridge=BridgeParams(steps=3, hidden=8, amortiser=8),
    hyper_steps=80,
    moves=200,
    grid_draws=60,
    sampler=SghmcParams(chains=2, burn_in=50, window=100),
)


def test_distance_is_that_of_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 50, 3)), 1 + 2 * rng.standard_normal((2, 50, 3))
    for r in range(2):
        for t in range(3):
            assert wasserstein(a, b)[r, t] == pytest.approx(stats.wasserstein_distance(a[r, :, t], b[r, :, t]))


def test_stage_finds_the_step_and_compares_posteriors(tmp_path):
    prepare(PrepareParams(data=("step",), seeds=2), Inputs(), tmp_path / "prepare", NullLog())
    log = KeptLog()
    metrics = evaluate(SMALL, Inputs({"prepare": tmp_path / "prepare"}), tmp_path, log)
    bands = read_parquet(tmp_path / "posterior.parquet")
    for _, part in bands.groupby(["arm", "seed"]):
        assert (part["lower"] <= part["upper"]).all()
        assert part[part["x"] > 0.5]["mean"].mean() > 0.2 > -0.2 > part[part["x"] < -0.7]["mean"].mean()
    assert set(bands["arm"]) == {"dsvi", "ddvi", "dbvi", "sghmc"}
    assert metrics["ddvi.spread_to_sghmc.step"] > 1.0
    assert set(log.figures) == {"step"}


def test_one_set_is_enough():
    with pytest.raises(ValueError, match="at most 1"):
        StepParams(data={"step": {}, "concrete": {}})
