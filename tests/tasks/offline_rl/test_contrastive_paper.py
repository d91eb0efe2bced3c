"""The paper as a whole on the smoke parameters: metrics declared, figures made, claims find what they read."""

import math

import pytest
from contrastive_stages import SECTIONS, stages

from flows.contrastive_offline_rl import paper
from flows.engine.checks import SUFFIXES, Evidence

pytestmark = pytest.mark.xdist_group("contrastive")


def test_every_metric_is_finite_and_declared_and_every_figure_is_made(contrastive_smoke):
    run = contrastive_smoke[0]
    for stage in paper.stages:
        reported = run.metrics.get(stage.name, {})
        assert all(math.isfinite(v) for v in reported.values())
        assert {name for name in reported if not name.endswith(SUFFIXES)} <= stage.metric_names()
    assert set(run.log.figures) == set(paper.figures)


def test_claims_and_their_controls_find_their_metrics(contrastive_smoke):
    found = contrastive_smoke[0].all_metrics()
    evidence = Evidence(found)
    for claim in paper.claims:
        for check in (claim.check, claim.control.against(claim.check)):
            outcome = check.judge(evidence)
            assert "is missing" not in outcome.text, (claim.id, outcome.text)


def test_what_is_undefined_is_so_at_any_scale(contrastive_smoke):
    found = contrastive_smoke[0].all_metrics()
    assert found["cpl.cannot_run.no_failures"] == 1
    assert found["preforl_a.cannot_run.no_failures"] == 0


@pytest.mark.parametrize("profile", ["cpu", "gpu", "smoke"])
def test_parameters_are_valid_and_agree_between_stages(profile):
    found = {stage.name: params for stage, _, params in stages(profile)}
    prepared = found["prepare"]
    for name in (
        "warmstart",
        "train-preference",
        "train-robustness",
        "train-value",
        "evaluate-policies",
        "evaluate-robustness",
        "evaluate-speed",
    ):
        assert found[name].seeds == prepared.seeds, name
    assert list(found["warmstart"].datasets) == list(found["train-preference"].datasets) == list(found["evaluate-policies"].datasets)
    assert list(found["evaluate-policies"].datasets) == prepared.names()
    assert found["evaluate-speed"].configs() == found["train-value"].configs()
    assert found["evaluate-speed"].short_updates == found["evaluate-policies"].short_updates
    for arm, config in found["evaluate-speed"].contrastive.items():
        assert config == found["train-preference"].arms[arm]
    for arm, config in found["evaluate-speed"].cloning.items():
        assert config == found["warmstart"].arms[arm]
    assert found["train-robustness"].arms["preforl"] == found["train-preference"].arms["preforl"]
    for name in ("biases", "sigmas"):
        assert getattr(found["train-robustness"], name) == getattr(found["evaluate-robustness"], name)
    for arm, updates in found["evaluate-policies"].short_updates.items():
        assert updates in found["train-value"].configs()[arm].checkpoints
    if profile == "gpu":
        assert found["prepare-d4rl"].tasks == found["train-d4rl"].tasks == found["evaluate-d4rl"].tasks


def test_all_arms_of_the_method_differ_in_what_they_are_named_after():
    arms = SECTIONS["cpu"]["train"]["preference"]["arms"]
    changed = {name: {k for k in {*arm, *arms["preforl"]} if arm.get(k) != arms["preforl"].get(k)} for name, arm in arms.items()}
    assert changed["preforl_a"] == changed["preforl_s"] == changed["uniform"] == {"negatives"}
    assert changed["preforl_clip"] == {"clip_degraded"}
    assert changed["preforl_warm"] == {"start"}
    assert changed["shuffled"] == {"shuffled"}


def test_the_flow_is_made_on_demand_alone():
    import flows.contrastive_offline_rl as module

    with pytest.raises(AttributeError, match="no attribute 'flux'"):
        _ = module.flux
