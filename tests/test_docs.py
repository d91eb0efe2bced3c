"""What the documentation says is so: it builds, its snippets run, its commands exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flows.engine import docs, page
from flows.engine.declare import PROFILES
from flows.engine.project import Project

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = {path.relative_to(ROOT): re.findall(r"(?ms)^```python\n(.*?)^```", path.read_text()) for path in PAGES}
SNIPPETS = [pytest.param("\n".join(blocks), id=str(path)) for path, blocks in BLOCKS.items() if blocks]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_the_site_builds_strictly_with_a_page_for_every_paper(site: Path):
    navigation = (site / "index.html").read_text()
    built = sorted(path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md"))
    assert Path("index.html") in built
    for path in built:
        assert (site / path).is_file()
        assert f'href="{path}"' in navigation


def test_the_site_fetches_nothing_from_elsewhere(site: Path):
    for path in site.rglob("*.html"):
        text = re.sub(r"<a\s[^>]*>", "", path.read_text())
        assert re.findall(r'(?:src|href)="(?:https?:)?//[^"]*"', text) == [], path.name
    assert not [p for p in site.rglob("*.css") if re.search(r"@import|url\(['\"]?(https?:)?//", p.read_text())]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_the_snippets_of_a_page_run_from_top_to_bottom(snippet: str):
    done = subprocess.run(
        [sys.executable, "-c", snippet], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_every_command_that_is_named_exists():
    help_text = subprocess.run([sys.executable, "-m", "flows.engine.cli", "--help"], cwd=ROOT, capture_output=True, text=True).stdout
    known = {
        "papers": set(re.findall(r"(?m)^    (\w+)", help_text)),
        "make": set(re.findall(r"(?m)^(\w+):", (ROOT / "Makefile").read_text())),
    }
    text = "\n".join(path.read_text() for path in PAGES)
    code = [
        *re.findall(r"`([^`\n]+)`", text),
        *"\n".join(re.findall(r"(?ms)^```(?:sh|text)\n(.*?)^```", text)).replace("$ ", "").splitlines(),
    ]
    code += [entry["command"] for profile in PROFILES for entry in page.commands(Project(ROOT, profile), "alpha", "alpha-train")]
    named = [(found[1], found[2]) for line in code if (found := re.match(r"(papers|make) (\w+)", line))]
    assert {program for program, _ in named} == set(known)
    assert {f"{program} {word}" for program, word in named if word not in known[program]} == set()


def test_the_readme_opens_with_the_two_commands_and_can_take_the_scorecard():
    text = (ROOT / "README.md").read_text()
    commands = [line.split("#")[0].strip() for line in text.split("```sh\n")[1].split("```")[0].splitlines()]
    assert commands == ["make reproduce", "make test"]
    assert text.index("```sh") < 40
    assert docs.replace_between(ROOT / "README.md", text, docs.SCORECARD, "table\n").count("table\n") == 1


def test_the_rooms_of_the_readme_are_there():
    rows = re.findall(r"(?m)^\| (`.*?`) \| ", (ROOT / "README.md").read_text())
    rooms = [room for row in rows for room in re.findall(r"`(.*?)`", row) if "<" not in room and room != "data/"]
    assert "flows/engine/" in rooms
    assert [room for room in rooms if not (ROOT / room).exists()] == []


def test_the_hooks_before_a_commit_call_what_is_installed():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {hook["id"] for hook in hooks} == {"ruff-check", "ruff-format", "mypy", "papers-sync"}
    for hook in hooks:
        assert hook["language"] == "system"
        assert (Path(sys.executable).parent / shlex.split(hook["entry"])[0]).exists()
