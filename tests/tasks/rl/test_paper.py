"""The paper as declared, against what its stages report on the smoke parameters."""

import doctest
import importlib
import re
from pathlib import Path

import polychromic_stages
import pytest

from flows.engine.checks import Evidence
from flows.polychromic import paper

pytestmark = pytest.mark.xdist_group("polychromic")
ROOT = Path(__file__).parents[3]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("rl", "gridworld", "creativity")
    for path in sorted((ROOT / "tasks" / folder).glob("[a-z]*.py"))
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_stages_report_only_what_is_declared_and_all_that_claims_read(smoke):
    metrics, figures, _ = smoke
    declared = {stage.name: stage.metric_names("smoke") for stage in paper.stages}
    for stage, found in metrics.items():
        assert {n for n in found if not n.endswith((".lo", ".hi", ".se", ".n"))} <= declared[stage], stage
    evidence = Evidence({name: value for found in metrics.values() for name, value in found.items()})
    for claim in paper.claims:
        for check in (claim.check, *([claim.control.against(claim.check)] if claim.control else [])):
            assert "missing" not in check.judge(evidence).text, claim.id
    assert set(paper.figures) <= set(figures)


@pytest.mark.parametrize("profile", ["cpu", "gpu", "smoke"])
def test_parameters_of_every_profile_are_valid_and_agree(profile):
    found = {stage.name: params for stage, _, params in polychromic_stages.bound(profile)}
    for level in ("fourrooms", "goto"):
        assert found[f"warmstart-{level}"].hidden == found[f"train-{level}"].hidden == found[f"evaluate-{level}"].hidden
        assert found[f"warmstart-{level}"].seeds == found[f"train-{level}"].seeds == found[f"evaluate-{level}"].seeds
    budgets = {found[f"train-{part}"].env_steps for part in ("fourrooms", "sets", "ablations")}
    assert len(budgets) == 1
    trained = [arm for part in ("fourrooms", "sets", "ablations") for arm in found[f"train-{part}"].arms]
    assert sorted(trained) == sorted(found["evaluate-fourrooms"].arms)
    assert found["prepare-triangles"].seeds == found["warmstart-triangles"].seeds == found["train-triangles"].start.seeds
    if profile == "cpu":
        assert found["train-fourrooms"].seeds >= 3


def test_baselines_share_the_methods_settings():
    found = {stage.name: params for stage, _, params in polychromic_stages.bound("cpu")}
    arms = found["train-fourrooms"].arms | found["train-sets"].arms
    for name in ("set_mean", "vine_single"):
        changed = {k for k, v in arms[name].model_dump().items() if v != arms["poly"].model_dump()[k]}
        assert changed == {"objective"}
    for name in ("ppo", "ppo_small"):
        changed = {k for k, v in arms[name].model_dump().items() if v != arms["poly"].model_dump()[k]}
        assert changed <= {"objective", "episodes", "window"}


def test_the_pages_snippets_run():
    page = (ROOT / "docs/papers/polychromic.md").read_text()
    names: dict = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)), names)
    assert names["found"].advantage.shape == (1, 4)


def test_the_flow_is_made_on_demand_alone():
    import flows.polychromic as module

    with pytest.raises(AttributeError, match="no attribute 'flux'"):
        _ = module.flux
