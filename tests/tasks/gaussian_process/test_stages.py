"""All stages of the paper at smoke size: what they report, that they repeat exactly, and that every claim is judged."""

from __future__ import annotations

import math

import gp_stages
import pytest
from kept_log import KeptLog

from flows.dbvi import paper
from flows.engine.checks import SUFFIXES, Evidence

SPEED = "evaluate-speed"


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    log = KeptLog()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAPERS_THREADS", "1")
        return gp_stages.run(tmp_path_factory.mktemp("smoke"), log), log


def base_names(metrics):
    return {name for name in metrics if not name.endswith(SUFFIXES)}


def test_smoke_twice_gives_identical_metrics_whatever_the_pool(smoke, tmp_path, monkeypatch):
    monkeypatch.setenv("PAPERS_THREADS", "1")
    again = gp_stages.run(tmp_path, in_a_pool="train-dbvi")
    for name, metrics in smoke[0].items():
        if name != SPEED:
            assert again[name] == metrics, name


def test_metrics_are_finite_and_declared_stage_by_stage(smoke):
    for name, metrics in smoke[0].items():
        assert all(math.isfinite(v) for v in metrics.values()), name
        assert base_names(metrics) <= paper.stage(name).metric_names("smoke"), name


def test_every_claim_finds_its_metrics(smoke):
    evidence = Evidence({k: v for metrics in smoke[0].values() for k, v in metrics.items()})
    for claim in paper.claims:
        checks = [claim.check, claim.control.against(claim.check)] if claim.control else [claim.check]
        for check in checks:
            assert "missing" not in check.judge(evidence).text, claim.id


def test_identity_holds_at_any_size(smoke):
    metrics = smoke[0]["evaluate-identity"]
    for name in ("concrete", "boston"):
        assert metrics[f"frozen.loss_difference.{name}"] <= 1e-6
        assert metrics[f"frozen.gradient_difference.{name}"] <= 1e-6
        assert metrics[f"moved.loss_difference.{name}"] > 1e-3


def test_figures_are_drawn_and_small(smoke):
    assert set(paper.figures) == set(smoke[1].figures)
    assert all(max(size) < 10 for _, size in smoke[1].figures.values())


def test_times_and_curves_go_to_the_log(smoke):
    assert smoke[1].timings["train_ms_per_step_dbvi_concrete"] > 0
    assert smoke[1].steps
