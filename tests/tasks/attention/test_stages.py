"""The stages as the pipeline runs them: what they report, the claims' verdicts, parameters of all profiles."""

from __future__ import annotations

import attention_stages as stages
import pytest

from flows.engine import checks, judge
from tasks.common.node import Inputs
from tasks.language_models import benchmark_files


def test_every_stage_reports_what_is_declared(pipeline):
    _, metrics, _ = pipeline
    for name, found in metrics.items():
        names = {n for n in found if not n.endswith(checks.SUFFIXES)}
        assert names <= stages.paper().stage(name).metric_names("smoke"), name
        assert all(abs(value) < float("inf") for key, value in found.items() if not key.endswith(checks.SUFFIXES))


def test_the_cpu_profile_adds_no_other_names(pipeline):
    _, metrics, _ = pipeline
    declared = stages.paper().stage("evaluate-guarantees").metric_names("cpu")
    assert {n for n in metrics["evaluate-guarantees"] if not n.endswith(checks.SUFFIXES)} <= declared


def test_every_claim_can_be_judged(pipeline):
    _, metrics, _ = pipeline
    evidence = checks.Evidence({name: value for found in metrics.values() for name, value in found.items()})
    for claim in stages.paper().claims:
        if claim.id == "faster_than_dense":  # timed at lengths that the smoke profile leaves out
            continue
        for check in (claim.check, claim.control.against(claim.check)):
            assert "missing" not in check.judge(evidence).text, claim.id
    assert judge.judge_claim(stages.paper().claims[0], evidence, "smoke")["scale"] == "toy"


def test_speed_claims_name_what_is_timed(pipeline):
    _, metrics, _ = pipeline
    claim = next(c for c in stages.paper().claims if c.id == "faster_than_dense")
    timed = {name.replace("_1k", "_32k") for name in metrics["evaluate-speed"]}
    for check in (claim.check, claim.control.against(claim.check)):
        assert check.metrics() <= timed


def test_figures_and_history(pipeline):
    _, _, logs = pipeline
    drawn = {figure for log in logs.values() for figure in log.figures}
    assert drawn == set(stages.paper().figures)
    assert [row["hash_loss"] for row in logs["train"].steps]


def test_a_second_run_gives_the_same_numbers(pipeline):
    root, metrics, _ = pipeline
    assert stages.run(root, "evaluate") == metrics["evaluate"]
    assert stages.run(root, "train") == metrics["train"]


@pytest.mark.parametrize("profile", ["cpu", "gpu", "smoke"])
def test_parameters_of_every_profile_are_valid(profile):
    for name, (_, params, _) in stages.NODES.items():
        params(**stages.SECTIONS[profile][name])


@pytest.mark.parametrize("profile", ["cpu", "smoke"])
def test_sets_of_prompts_share_no_seed(profile):
    sets = benchmark_files.BenchmarkParams(**stages.SECTIONS[profile]["prepare"]).sets.values()
    seeds = [seed for wanted in sets for seed in range(wanted.first_seed, wanted.first_seed + wanted.seeds)]
    assert len(set(seeds)) == len(seeds)


def test_the_page_has_the_markers():
    text = stages.PAGE.read_text()
    for name in ("scorecard", "figures"):
        assert text.count(f"<!-- {name}:begin -->") == text.count(f"<!-- {name}:end -->") == 1


def test_unknown_needs_are_named():
    node, params, _ = stages.NODES["train"]
    with pytest.raises(KeyError, match="'warmstart' is not bound"):
        node(params(), Inputs(), stages.ROOT, stages.KeptLog())
