from __future__ import annotations

import re
import sys

import factory
import pytest

from flows.engine.checks import at_least
from flows.engine.declare import Claim, Control, DeclarationError, Deviation, Paper, Stage, expand

NODE = "tasks.tabular.rdatasets:load_table"


def stage(name: str = "evaluate", **options) -> Stage:
    return Stage(name, NODE, **{"metrics": ["ours.score", "none.score"], **options})


def claim(**options) -> Claim:
    given = {"id": "c", "statement": "s", "paper_says": "p", "check": at_least("ours.score", 1), "scale": "toy", "why_scale": "w"}
    return Claim(**{**given, **options})


def paper(**options) -> Paper:
    return Paper(**{"slug": "x", "title": "t", "arxiv": "1", "stages": [stage()], "claims": [claim()], **options})


def test_a_good_paper_is_accepted():
    assert paper(claims=[claim(control=Control("none", swap={"ours": "none"}))]).stage("evaluate").kind == "evaluate"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slug": "X-y"}, "bad slug 'X-y'"),
        ({"stages": [stage(), stage()]}, "two stages are called 'evaluate'"),
        ({"stages": [stage("evaluated")]}, "unknown kind of stage 'evaluated'; did you mean 'evaluate'?"),
        ({"stages": [Stage("evaluate", "tasks.tabular.rdatasets:load_tabel")]}, "load_tabel'; did you mean 'load_table'?"),
        ({"stages": [Stage("evaluate", "tasks.tabular.nowhere:f")]}, "no such module 'tasks.tabular.nowhere'"),
        ({"stages": [Stage("evaluate", "load_table")]}, "bad node 'load_table'"),
        ({"stages": [Stage("evaluate")]}, "needs either a node or shared="),
        ({"stages": [stage(needs=["prepar"]), Stage("prepare", NODE)]}, "unknown need 'prepar'; did you mean 'prepare'?"),
        ({"stages": [stage(budget_min=0)]}, "budget must be more than 0 minutes, got 0"),
        ({"stages": [stage(budget_min={"cpus": 3})]}, "unknown profile 'cpus'; did you mean 'cpu'?"),
        ({"stages": [stage(needs=["train"]), Stage("train", NODE, needs=["evaluate"])]}, "stages need each other"),
        ({"claims": [claim(check=at_least("our.score", 1))]}, "unknown metric 'our.score'; did you mean 'ours.score'?"),
        ({"claims": [claim(), claim()]}, "two claims share the id 'c'"),
        ({"claims": [claim(scale="tiny")]}, "unknown scale 'tiny'"),
        ({"claims": [claim(why_scale=" ")]}, "must say something"),
        ({"claims": [claim(control=Control("none", swap={"theirs": "none"}))]}, "the control asks the claim's own check"),
        ({"deviations": [Deviation("less data", because="")]}, "deviation without a reason 'less data'"),
        ({"stages": [stage(), Stage("train", NODE, metrics=["ours.score"])]}, "two stages declare the metric 'ours.score'"),
    ],
)
def test_mistakes_surface_when_the_paper_is_declared(options, message):
    with pytest.raises(DeclarationError, match=re.escape(message)):
        paper(**options)


def test_unknown_stage_is_named_with_a_hint():
    with pytest.raises(DeclarationError, match="did you mean 'evaluate'"):
        paper().stage("evalute")


def test_fan_out_names_every_variant():
    fanned = Stage("train", NODE, over={"method": ("dbvi", "ddvi"), "seed": ("0", "1")})
    assert fanned.variants()[1] == ("train-dbvi-1", {"method": "dbvi", "seed": "1"})
    assert len(fanned.variants()) == 4


def test_braces_expand_like_a_shell():
    assert expand("{a,b}.c.{d,e}") == ["a.c.d", "a.c.e", "b.c.d", "b.c.e"]
    assert expand("plain") == ["plain"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("alpha: {cpu: {prepare:", "alpha: {cpu: {prepair:"), "section of no stage 'prepair'; did you mean 'prepare'?"),
        (("alpha: {cpu:", "alpha: {cpus:"), "unknown profile 'cpus'; did you mean 'cpu'?"),
        (("alpha:", "alhpa:"), "section of no paper 'alhpa'; did you mean 'alpha'?"),
        (("train: {value: 0.5}", "train: {valeu: 0.5}"), "alpha.cpu.train.valeu: Extra inputs are not permitted"),
        (("train: {value: 0.5}", "train: {value: much}"), "alpha.cpu.train.value: Input should be a valid number"),
    ],
)
def test_trap_28_a_typo_in_the_parameters_is_an_error(fresh, edit, message):
    factory.edit(fresh / "params.yaml", *edit)
    done = factory.papers_command(fresh, "sync", "--check", check=False)
    assert done.returncode != 0
    assert message in done.stderr


def test_importing_the_declarations_is_light(fresh):
    code = (
        "import sys, flows.engine.registry as r; r.papers(); "
        "heavy = {'torch', 'mlflow', 'scanpy', 'prefect', 'transformers', 'pandas'} & set(sys.modules); sys.exit(', '.join(heavy) or 0)"
    )
    assert factory.run(factory.ROOT, sys.executable, "-c", code).returncode == 0
