from __future__ import annotations

import pytest
from small_concrete import COMMON

from flows.dbvi import VARIANTS as DECLARED
from tasks.common.formats import read_parquet
from tasks.common.node import NullLog
from tasks.gaussian_process.ablations import VARIANTS, AblationParams, changed, train
from tasks.gaussian_process.comparison_figures import SIGMAS, STEPS, VARIANT_NAMES
from tasks.gaussian_process.diffusion_bridge import BridgeParams
from tasks.gaussian_process.experiment import Architecture, SetParams
from tasks.gaussian_process.training import FitParams


def test_every_variant_changes_something_that_exists():
    for name, variant in VARIANTS.items():
        bridge = changed(BridgeParams(), variant.bridge)
        architecture, fit = changed(Architecture(), variant.architecture), changed(FitParams(), variant.fit)
        default = (bridge, architecture, fit, variant.warm) == (BridgeParams(), Architecture(), FitParams(), True)
        assert default == (name == "base"), name


def test_declaration_and_figures_know_every_variant():
    assert set(DECLARED) == set(VARIANTS) - {"base"}
    assert set(VARIANT_NAMES) == set(VARIANTS)
    for points, field in ((SIGMAS, "sigma"), (STEPS, "steps")):
        for name, value in points.items():
            assert getattr(changed(BridgeParams(), VARIANTS[name].bridge), field) == value


def test_all_variants_run_from_the_right_start(small_inputs, tmp_path):
    few = {**COMMON, "data": {"concrete": SetParams(seeds=1, steps=2)}, "architecture": Architecture(inducing=8)}
    params = AblationParams(**few, bridge=BridgeParams(hidden=4, amortiser=4), warm_steps=2)
    params = params.model_copy(update={"variants": tuple(v for v in VARIANTS if v != "m64")})
    metrics = train(params, small_inputs, tmp_path, NullLog())
    runs = read_parquet(tmp_path / "runs.parquet")
    arms = {f"{method}_{variant}" for variant in params.variants for method in VARIANTS[variant].methods}
    assert set(runs["arm"]) == arms
    assert {f"{arm}.elbo.concrete" for arm in arms} <= set(metrics)
    sigma = runs[(runs["quantity"] == "sigma_1")].set_index("arm")["value"]
    assert sigma["dbvi_sigma_01"] == pytest.approx(0.1)
    assert sigma["dbvi_learned_sigma"] != pytest.approx(0.3, abs=1e-4)


def test_unknown_variants_and_impossible_changes_are_refused():
    with pytest.raises(ValueError, match=r"unknown variants \['sigma_2'\]; known: base"):
        AblationParams(variants=("base", "sigma_2"))
    with pytest.raises(ValueError, match="greater than 0"):
        changed(BridgeParams(), {"sigma": -1.0})
