from __future__ import annotations

import math

import diffusion_stages
from diffusion_stages import PAPER, SECTIONS, STAGES

from flows.engine.checks import SUFFIXES, Evidence
from tasks.masked_diffusion.scheduler_figures import LABELS


def base_names(metrics):
    return {name for name in metrics if not name.endswith(SUFFIXES)}


def test_smoke_twice_gives_identical_metrics_whatever_the_pool(smoke, tmp_path, monkeypatch):
    monkeypatch.setenv("PAPERS_THREADS", "2")
    again = diffusion_stages.run(tmp_path)
    for name in STAGES:
        if name != "evaluate-speed":
            assert again[name] == smoke[1][name], name


def test_metrics_are_finite_and_the_declared_ones(smoke):
    for name, metrics in smoke[1].items():
        assert all(math.isfinite(value) for value in metrics.values())
        assert base_names(metrics) == PAPER.stage(name).metric_names("smoke")


def test_every_claim_and_control_is_judged(smoke):
    evidence = Evidence({k: v for metrics in smoke[1].values() for k, v in metrics.items()})
    for claim in PAPER.claims:
        assert "missing" not in claim.check.judge(evidence).text, claim.id
        assert "missing" not in claim.control.against(claim.check).judge(evidence).text, claim.id


def test_figures_and_times_are_reported(smoke):
    log = smoke[2]
    assert set(log.figures) == set(PAPER.figures)
    assert log.figures["ablations"].axes == 4
    assert log.figures["commit_map"].axes == 5  # four arms and the colour bar
    assert "train_cpu_s_per_model" in log.timings
    assert any("loss_0" in step for step in log.steps)
    assert {"lsp", "threshold"} <= set(LABELS)


def test_parameters_of_all_profiles_are_valid():
    for section in SECTIONS.values():
        for name, (_, model, _) in STAGES.items():
            model(**section[name])


def test_every_stage_has_its_parameters():
    for profile, section in SECTIONS.items():
        assert set(section) == {stage.name for stage in PAPER.stages if profile in stage.profiles}
