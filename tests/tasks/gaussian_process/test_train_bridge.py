from __future__ import annotations

import numpy as np
import pytest
import torch
from small_concrete import COMMON

from tasks.common.formats import read_parquet
from tasks.common.node import NullLog
from tasks.gaussian_process.diffusion_bridge import BridgeParams
from tasks.gaussian_process.experiment import SetParams, Work
from tasks.gaussian_process.streams import SeedStreams
from tasks.gaussian_process.train_bridge import BridgeTrainParams, bridge_model, freeze_amortisers, train
from tasks.gaussian_process.training import train as fit_model

SMALL = {**COMMON, "bridge": BridgeParams(steps=3, hidden=8, amortiser=8)}


def values(folder, quantity):
    runs = read_parquet(folder / "runs.parquet")
    return runs[runs["quantity"] == quantity].sort_values("seed")["value"].to_numpy()


@pytest.fixture(scope="module")
def trained(small_inputs, tmp_path_factory):
    """Folder of each method's stage."""
    root = tmp_path_factory.mktemp("bridge")
    for method in ("dbvi", "ddvi", "mean_vector", "frozen"):
        (root / method).mkdir()
        train(BridgeTrainParams(**SMALL, method=method), small_inputs, root / method, NullLog())
    return root


def test_learned_starts_leave_zero_and_fixed_ones_do_not(trained):
    for method, moved in (("dbvi", True), ("mean_vector", True), ("ddvi", False), ("frozen", False)):
        assert (values(trained / method, "center_norm_2") > 0.5).all() == moved


def test_the_learned_start_has_the_better_bound(trained):
    assert (values(trained / "dbvi", "elbo") > values(trained / "ddvi", "elbo") + 0.05).all()


def test_frozen_is_another_run_of_ddvi(trained):
    frozen, ddvi = values(trained / "frozen", "elbo"), values(trained / "ddvi", "elbo")
    assert not np.array_equal(frozen, ddvi)
    np.testing.assert_allclose(frozen, ddvi, atol=0.3)


def test_the_parts_of_the_divergence_sum_to_it(trained):
    parts = [values(trained / "dbvi", f"{name}_{layer}") for name in ("start", "path", "end") for layer in (1, 2)]
    np.testing.assert_allclose(np.sum(parts, axis=0), values(trained / "dbvi", "kl"), rtol=1e-4)


def test_frozen_model_is_ddvi_in_bound_and_gradient(small_inputs):
    params = BridgeTrainParams(**SMALL)
    problem = Work(small_inputs["prepare"], small_inputs["warmstart"], "concrete", params).problem()
    found = []
    for center in ("amortised", "zero"):
        model = bridge_model(problem, params.architecture, [0, 1], params.bridge.model_copy(update={"center": center}))
        if center == "amortised":
            freeze_amortisers(model)
        with torch.no_grad():
            for posterior in model.posteriors:
                posterior.correction.weights[-1] += 0.1
        loss = -model.bound(problem.x, problem.y, problem.rows, 2, SeedStreams([0, 1])).per_datum
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        found.append((loss, dict(zip(trainable, torch.autograd.grad(loss.sum(), list(trainable.values())), strict=True))))
    (loss, gradients), (other, others) = found
    torch.testing.assert_close(loss, other, atol=1e-6, rtol=0)
    assert gradients.keys() == others.keys()
    for name in gradients:
        torch.testing.assert_close(gradients[name], others[name], atol=1e-6, rtol=0)


def test_dbvi_goes_on_from_ddvi_and_does_not_fall_behind(small_inputs):
    params = BridgeTrainParams(**SMALL)
    problem = Work(small_inputs["prepare"], small_inputs["warmstart"], "concrete", params).problem()
    fit = params.fit.model_copy(update={"curve": 0, "draws": 0})
    start, reference, follower = (
        bridge_model(problem, params.architecture, [0, 1], params.bridge.model_copy(update={"center": center}))
        for center in ("zero", "zero", "amortised")
    )
    fit_model(start, problem, fit, 60, [0, 1])
    for model in (reference, follower):
        model.load_state_dict(start.state_dict(), strict=False)  # only the amortiser, which is at zero, is new
    ddvi, dbvi = (fit_model(model, problem, fit, 80, [0, 1], variant=3) for model in (reference, follower))
    np.testing.assert_allclose(dbvi.elbo[0], ddvi.elbo[0], rtol=1e-4)
    assert (dbvi.final()["elbo"] >= ddvi.final()["elbo"] - 0.02).all()


def test_unknown_method_is_refused():
    with pytest.raises(ValueError, match="dbvi"):
        BridgeTrainParams(method="svgd")


def test_controls_may_run_on_fewer_sets(small_inputs, tmp_path):
    data = {"concrete": SetParams(seeds=2, steps=2), "boston": SetParams(seeds=2, steps=2)}
    with pytest.raises(ValueError, match=r"control_data names \['iris'\], which are not in data \(concrete, boston\)"):
        BridgeTrainParams(data=data, control_data=("iris",))
    params = BridgeTrainParams(**{**SMALL, "data": data, "control_data": ("concrete",)}, method="frozen")
    train(params, small_inputs, tmp_path, NullLog())  # Boston is not even prepared
    assert set(read_parquet(tmp_path / "runs.parquet")["data"]) == {"concrete"}
