"""`papers new`: the skeleton imports and syncs, fails what every paper owes, and is written whole or not at all."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from factory import ROOT, edit, environment, make_project, papers_command, run, write

from flows.engine import scaffold
from flows.engine.declare import DeclarationError

PARAMETERS = "# every knob\nalpha: {cpu: {train: {value: 1.0}}}  # kept\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "flows").mkdir()
    (tmp_path / "params.yaml").write_text(PARAMETERS)
    return tmp_path


def files(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in root.rglob("*") if p.is_file()}


def test_writes_every_file_of_a_paper_and_keeps_the_comments_of_params(checkout: Path):
    written = scaffold.create(checkout, "dbvi", "Diffusion bridges", "2509.19078")
    assert {str(p.relative_to(checkout)) for p in written} == set(files(checkout))
    assert (checkout / "params.yaml").read_text().startswith(PARAMETERS)
    section = yaml.safe_load((checkout / "params.yaml").read_text())["dbvi"]
    assert set(section) == {"cpu", "gpu", "smoke"}
    assert all(set(kinds) == {"prepare", "warmstart", "train", "evaluate"} for kinds in section.values())
    assert 'title="Diffusion bridges"' in (checkout / "flows/dbvi.py").read_text()


def test_what_it_writes_is_formatted_as_the_project_is(checkout: Path):
    shutil.copyfile(ROOT / "pyproject.toml", checkout / "pyproject.toml")
    scaffold.create(checkout, "dbvi")
    for words in (["format", "--check"], ["check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *words, "--no-cache", "."], cwd=checkout, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("slug", ["", "Dbvi", "2fast", "a-b", "a b", "../x", "class", "shared", "collection", "engine", "common"])
def test_refuses_names_that_cannot_be_used(checkout: Path, slug: str):
    before = files(checkout)
    with pytest.raises(DeclarationError, match=re.escape(repr(slug))):
        scaffold.create(checkout, slug)
    assert files(checkout) == before


@pytest.mark.parametrize(("title", "arxiv"), [('a "quoted" title', ""), ("back\\slash", ""), ("fine", "not-an-id")])
def test_refuses_a_title_or_an_identifier_that_would_break_the_file(checkout: Path, title: str, arxiv: str):
    with pytest.raises(DeclarationError, match="bad"):
        scaffold.create(checkout, "dbvi", title, arxiv)
    assert set(files(checkout)) == {"params.yaml"}


@pytest.mark.parametrize("there", ["flows/dbvi.py", "tasks/dbvi/method.py", "docs/papers/dbvi.md", "tests/tasks/dbvi/test_stages.py"])
def test_refuses_a_paper_of_which_anything_exists(checkout: Path, there: str):
    write(checkout / there, "old")
    before = files(checkout)
    with pytest.raises(DeclarationError, match="already there"):
        scaffold.create(checkout, "dbvi")
    assert files(checkout) == before


@pytest.mark.parametrize("text", ["dbvi: {cpu: {}}\n", "- a\n- list\n", "a: {b: 1\n", "alpha: {cpu: {}}\n---\nbeta: {}\n"])
def test_refuses_parameters_that_cannot_take_the_section(checkout: Path, text: str):
    (checkout / "params.yaml").write_text(text)
    with pytest.raises(DeclarationError, match=r"params\.yaml"):
        scaffold.create(checkout, "dbvi")
    assert files(checkout) == {"params.yaml": text}


def test_takes_back_everything_when_one_file_cannot_be_written(checkout: Path):
    (checkout / "docs").write_text("a file where a folder must be\n")
    before = files(checkout)
    with pytest.raises(DeclarationError, match="nothing was changed"):
        scaffold.create(checkout, "dbvi")
    assert files(checkout) == before
    assert sorted(p.name for p in checkout.iterdir()) == ["docs", "flows", "params.yaml"]


@pytest.mark.e2e
def test_the_skeleton_syncs_and_fails_until_it_is_filled_in(tmp_path: Path):
    root = make_project(tmp_path, papers=(), sync=False)
    (root / "tests/flows").mkdir(parents=True)
    shutil.copyfile(ROOT / "tests/flows/test_papers.py", root / "tests/flows/test_papers.py")
    run(root, sys.executable, "-c", "from pathlib import Path; from flows.engine import scaffold; scaffold.create(Path.cwd(), 'dbvi')")
    papers_command(root, "sync")
    assert "dbvi-evaluate" in yaml.safe_load((root / "dvc.yaml").read_text())["stages"]

    empty = held(root)
    assert empty.returncode == 1
    for missing in ("no claims", "no negative control", "without a budget", "no test function", "still raises", "no summary"):
        assert missing in empty.stdout

    nodes = root / "tasks/dbvi/stages.py"
    nodes.write_text(re.sub(r"raise NotImplementedError\(.*\)", 'return {"ours.x": 1.0, "control.x": 0.0}', nodes.read_text()))
    paper = root / "flows/dbvi.py"
    paper.write_text(re.sub(r"(:[a-z]+\")", r"\1, budget_min=1", paper.read_text()))
    edit(paper, 'evaluate", budget_min=1', 'evaluate", budget_min=1, metrics=["{ours,control}.x"]')
    edit(paper, 'summary=""', 'summary="It adds."')
    claim = 'Claim("a", "It adds.", "1", at_least("ours.x", 1.0), "toy", "sums", Control("off", {"ours": "control"}))'
    edit(paper, "claims=[]", f"claims=[{claim}]")
    edit(paper, "import Paper", "import Claim, Control, Paper")
    edit(paper, "from flows.engine.declare", "from flows.engine.checks import at_least\nfrom flows.engine.declare")
    write(root / "tests/tasks/dbvi/test_stages.py", "def test_sum():\n    assert 1 + 1 == 2\n")
    filled = held(root)
    assert filled.returncode == 0, filled.stdout


def held(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/flows"]
    return subprocess.run(command, cwd=root, env=environment(root), capture_output=True, text=True)
