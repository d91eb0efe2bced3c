"""The paper from end to end in the smoke profile, and what its declaration owes."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import get_type_hints

import pytest
import yaml
from kept_log import KeptLog

from flows import shared
from flows.engine.checks import Evidence
from flows.engine.declare import PROFILES, Stage
from flows.engine.plan import params_path
from flows.engine.project import section
from flows.engine.stage import load_node
from tasks.common.node import Inputs
from tests.flows.wsvd_files import PAGE, PARAMS, ROOT, paper

SETTINGS = yaml.safe_load(PARAMS.read_text())["wsvd"]
SMOLLM2 = {"source": "random"}


def nodes(profile: str) -> list[Stage]:
    return [stage for stage in paper.stages if stage.node and profile in stage.profiles]


def given(profile: str, stage: Stage):
    node = load_node(stage.node)
    return node, get_type_hints(node)["params"](**section(ROOT, params_path("wsvd", profile, stage.name)))


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    root, log = tmp_path_factory.mktemp("smoke"), KeptLog()
    patch = pytest.MonkeyPatch()
    patch.setenv("PAPERS_THREADS", "1")  # results do not depend on it, and processes take seconds to start
    for stage in paper.stages:
        (root / stage.name).mkdir()
    (model,) = [stage for stage in shared.stages if stage.name == "smollm2"]
    node = load_node(model.node)
    node(get_type_hints(node)["params"](**SMOLLM2), Inputs(), root / "warmstart", log)
    reported = {}
    for stage in nodes("smoke"):
        node, params = given("smoke", stage)
        reported[stage.name] = node(params, Inputs({need: root / need for need in stage.needs}), root / stage.name, log)
    patch.undo()
    return reported, list(log.figures)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_stage_has_parameters_and_no_others(profile):
    paths = {params_path("wsvd", profile, stage.name)[2] for stage in nodes(profile)}
    assert paths == set(SETTINGS[profile])
    for stage in nodes(profile):
        given(profile, stage)


def test_a_stage_beside_a_shared_one_reads_its_section():
    (stage,) = [stage for stage in nodes("smoke") if stage.name == "warmstart-vlm"]
    assert given("smoke", stage)[1].steps == SETTINGS["smoke"]["warmstart"]["vlm"]["steps"] == 4


def test_stages_report_exactly_what_they_declare(smoke):
    reported, _ = smoke
    for stage in nodes("smoke"):
        names = {name for name in reported[stage.name] if not name.endswith((".lo", ".hi", ".se", ".n"))}
        declared = stage.metric_names("smoke")
        assert names - declared == set(), stage.name
        assert declared - names == set(), stage.name


def test_every_claim_and_control_can_be_judged(smoke):
    reported, _ = smoke
    evidence = Evidence({name: value for metrics in reported.values() for name, value in metrics.items()})
    for claim in paper.claims:
        for check in [claim.check, *([claim.control.against(claim.check)] if claim.control else [])]:
            assert "missing" not in check.judge(evidence).text, claim.id


def test_the_figures_that_are_shown_first_are_drawn(smoke):
    _, figures = smoke
    assert set(paper.figures) <= set(figures)


def test_more_parameters_and_full_rank_come_closer_to_the_dense_model(smoke):
    metrics = smoke[0]["evaluate"]
    assert metrics["head_white_r90.kl_nats.smollm2"] < metrics["head_white_r50.kl_nats.smollm2"]
    assert metrics["svdllm_r50.act_err.smollm2"] < metrics["svd_r50.act_err.smollm2"]
    assert metrics["head_white_r50.param_ratio.smollm2"] <= 0.5


def test_the_snippets_of_the_page_run():
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```", PAGE.read_text())
    done = subprocess.run([sys.executable, "-c", "\n".join(blocks)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
