from __future__ import annotations

import numpy as np
import pytest
import torch
from kept_log import KeptLog
from pydantic import ValidationError

from tasks.common.formats import read_parquet
from tasks.common.node import Inputs, NullLog
from tasks.gaussian_process import train_reconstruction as reconstruction
from tasks.gaussian_process.datasets import PrepareParams, masked_file, prepare
from tasks.gaussian_process.diffusion_bridge import BridgeParams
from tasks.gaussian_process.masked_images import load_masked
from tasks.gaussian_process.train_reconstruction import ReconstructionParams, train
from tasks.gaussian_process.training import FitParams

PARAMS = ReconstructionParams(
    seeds=2, steps=15, warm_steps=15, inducing=8, fit=FitParams(batch=40), draws=8, bridge=BridgeParams(steps=3, hidden=8)
)


@pytest.fixture(autouse=True)
def _one_process(monkeypatch):
    monkeypatch.setenv("PAPERS_THREADS", "1")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    root = tmp_path_factory.mktemp("masked")
    prepare(PrepareParams(data=("step",), masked=("digits",), seeds=2, images=60), Inputs(), root, NullLog())
    return Inputs({"prepare": root})


def test_all_arms_are_reported_and_a_second_run_is_the_same(inputs, tmp_path):
    log = KeptLog()
    metrics = train(PARAMS, inputs, tmp_path / "a", log)
    assert list(log.figures) == ["reconstruction"]
    runs = read_parquet(tmp_path / "a/runs.parquet")
    assert set(runs["arm"]) == {"dsvi", "ddvi", "frozen", "dbvi", "mean_image"}
    assert set(runs["data"]) == {"masked_digits"}
    for arm in ("dsvi", "ddvi", "frozen", "dbvi"):
        part = runs[(runs["arm"] == arm) & (runs["quantity"] == "rmse")].sort_values("seed")["value"]
        assert metrics[f"{arm}.rmse.masked_digits"] == pytest.approx(part.mean())
        assert metrics[f"{arm}.rmse.masked_digits.n"] == 2
    frozen = runs[(runs["arm"] == "frozen") & (runs["quantity"] == "elbo")]["value"].to_numpy()
    fixed = runs[(runs["arm"] == "ddvi") & (runs["quantity"] == "elbo")]["value"].to_numpy()
    assert (frozen != fixed).all()  # noise of its own
    np.testing.assert_allclose(frozen, fixed, rtol=0.1)
    pair = "dbvi.elbo.masked_digits", "ddvi.elbo.masked_digits"
    assert metrics[f"{pair[0]}-{pair[1]}"] == pytest.approx(metrics[pair[0]] - metrics[pair[1]])
    assert np.isfinite(list(metrics.values())).all()
    assert train(PARAMS, inputs, tmp_path / "b", NullLog()) == metrics
    assert (tmp_path / "a/runs.parquet").read_bytes() == (tmp_path / "b/runs.parquet").read_bytes()


def test_before_its_first_step_dbvi_is_ddvi(inputs, tmp_path):
    # mu starts at zero; with sigma, masks, minibatches and noise shared, both arms' first bound is the same number.
    metrics = train(PARAMS.model_copy(update={"steps": 1}), inputs, tmp_path, NullLog())
    assert metrics["dbvi.elbo.masked_digits"] == pytest.approx(metrics["ddvi.elbo.masked_digits"], rel=1e-6)


def test_images_that_were_not_masked_are_named(inputs, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"masked_digits-2.parquet is missing"):
        train(PARAMS.model_copy(update={"seeds": 3}), inputs, tmp_path, NullLog())
    with pytest.raises(FileNotFoundError, match=r"masked_frey-0.parquet is missing"):
        train(PARAMS.model_copy(update={"images": "frey"}), inputs, tmp_path, NullLog())


def test_impossible_parameters_are_refused():
    for change in ({"images": "faces"}, {"steps": 0}, {"inducing": 0}, {"draws": 0}):
        with pytest.raises(ValidationError, match=r"Input should be"):
            ReconstructionParams(**change)


def test_arms_start_with_equal_corrections_in_every_layer(inputs):
    # An amortiser draws its own weights after those of its layer's correction; they must not shift the next layer's.
    images = [load_masked(inputs["prepare"] / masked_file("digits", seed)) for seed in range(2)]
    fixed, learned = (reconstruction._model(reconstruction._Job(inputs["prepare"], PARAMS, arm), images) for arm in ("ddvi", "dbvi"))
    for name, value in fixed.posteriors.named_parameters():
        torch.testing.assert_close(learned.posteriors.get_parameter(name), value, rtol=0, atol=0)
