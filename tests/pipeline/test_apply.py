import re
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field

from flows.engine import apply as tool
from flows.engine import cli
from flows.engine.declare import DeclarationError, Paper, Stage
from tasks.common.assets import AssetMissing
from tasks.common.node import Params


class Nested(Params):
    depth: int = 1


class UpperParams(Params):
    text: Path = Field(description="the file to read")
    times: int = Field(1, ge=1, description="how often, at most 100 %")
    joint: Literal["dash", "space"] = "dash"
    tags: tuple[str, ...] = ()
    limit: float | None = None
    loud: bool = True
    seed: int = 0
    device: str = "cpu"
    nested: Nested = Nested()


def upper(params: UpperParams, out: Path, log: Any) -> dict[str, float | int | str]:
    """Upper case of a file."""
    text = params.text.read_text()
    if text == "bad":
        raise ValueError("the file says 'bad';\n write something else")
    if text == "asset":
        raise AssetMissing("thing", "pip install thing")
    if text == "nothing":
        return {}
    joint = {"dash": "-", "space": " "}[params.joint]
    out.write_text(joint.join([text.upper() if params.loud else text] * params.times) + "".join(params.tags))
    if text == "figure":
        from matplotlib import pyplot

        log.figure("drawing", pyplot.figure())
    if text == "late":
        raise ValueError("too late")
    for _ in log.progress(range(2)):
        log.message("half")
    return {"characters": len(text), "share": 1 / 3, "depth": params.nested.depth, "limit": params.limit or 0.0}


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    paper = Paper(slug="toy", title="Toy", arxiv="0", stages=[Stage("prepare", "tasks.conformal.datasets:prepare")])
    object.__setattr__(paper, "apply", "tests:upper")
    plain = Paper(slug="plain", title="Plain", arxiv="0", stages=[Stage("prepare", "tasks.conformal.datasets:prepare")])
    monkeypatch.setattr(tool.registry, "papers", lambda: {"plain": plain, "toy": paper})
    monkeypatch.setattr(tool, "load_node", lambda name: upper)
    monkeypatch.setattr(tool, "params_type", lambda name: UpperParams)
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("abc")
    return tmp_path


def test_result_is_written_and_summarised(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "toy",
        "--text",
        "in.txt",
        "--times",
        "2",
        "--joint",
        "space",
        "--tags",
        "x",
        "y",
        "--no-loud",
        "--limit",
        "2.5",
        "--out",
        "o.txt",
    ]
    assert tool.main(words) == 0
    assert Path("o.txt").read_text() == "abc abcxy"
    printed = capsys.readouterr()
    assert printed.out.splitlines() == ["characters  3", "share       0.3333", "depth       1", "limit       2.5"]
    assert "wrote o.txt" in printed.err
    assert sorted(p.name for p in Path().iterdir()) == ["in.txt", "o.txt"]


def test_options_come_from_a_file_and_the_command_line_wins(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.yaml").write_text("text: in.txt\ntimes: 3\nnested: {depth: 7}\n")
    assert tool.main(["toy", "--params", "p.yaml", "--times", "2", "--out", "o.txt", "--json"]) == 0
    assert Path("o.txt").read_text() == "ABC-ABC"
    assert '"depth": 7' in capsys.readouterr().out


def test_figures_stand_beside_the_result() -> None:
    Path("in.txt").write_text("figure")
    tool.main(["toy", "--text", "in.txt", "--out", "o.txt"])
    assert Path("o.drawing.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("abc", ["--times", "0"], "--times: Input should be greater than or equal to 1, got '0'"),
        ("abc", ["--times", "many"], "--times: Input should be a valid integer.*got 'many'"),
        ("abc", ["--text", "absent.txt"], "--text: there is no absent.txt"),
        ("abc", ["--params", "absent.yaml"], "--params: there is no absent.yaml"),
        ("abc", ["--out", "no/o.txt"], "--out: there is no folder no; make it first"),
        ("bad", [], "the file says 'bad'; write something else"),
        ("asset", [], "thing is not installed; install it with: pip install thing"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_left(
    text: str, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("in.txt").write_text(text)
    assert cli.main(["apply", "toy", "--text", "in.txt", "--out", "o.txt", *more]) == 2
    said = capsys.readouterr().err
    assert said.startswith("papers apply: ")
    assert said.count("\n") == 1
    assert re.search(message, said)
    assert sorted(p.name for p in Path().iterdir()) == ["in.txt"]


def test_a_required_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["apply", "toy", "--out", "o.txt"]) == 2
    assert "--text is required" in capsys.readouterr().err


def test_unknown_options_of_a_file_are_refused_with_the_nearest() -> None:
    Path("p.yaml").write_text("time: 3\n")
    with pytest.raises(DeclarationError, match="unknown option 'time'; did you mean 'times'"):
        tool.main(["toy", "--params", "p.yaml", "--text", "in.txt", "--out", "o.txt"])


def test_what_exists_is_kept_until_the_new_one_is_whole() -> None:
    Path("o.txt").write_text("old")
    with pytest.raises(FileExistsError, match="--overwrite"):
        tool.main(["toy", "--text", "in.txt", "--out", "o.txt"])
    Path("in.txt").write_text("late")
    with pytest.raises(DeclarationError, match="too late"):
        tool.main(["toy", "--text", "in.txt", "--out", "o.txt", "--overwrite"])
    assert Path("o.txt").read_text() == "old"
    Path("in.txt").write_text("abc")
    tool.main(["toy", "--text", "in.txt", "--out", "o.txt", "--overwrite"])
    assert Path("o.txt").read_text() == "ABC"


def test_a_folder_is_replaced_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def folder(params: UpperParams, out: Path, log: Any) -> dict[str, float | int | str]:
        """A folder."""
        out.mkdir()
        (out / "new").write_text("")
        return {}

    monkeypatch.setattr(tool, "load_node", lambda name: folder)
    Path("o").mkdir()
    Path("o/old").write_text("")
    tool.main(["toy", "--text", "in.txt", "--out", "o", "--overwrite"])
    assert [p.name for p in Path("o").iterdir()] == ["new"]


def test_a_tool_that_writes_nothing_is_told() -> None:
    Path("in.txt").write_text("nothing")
    with pytest.raises(RuntimeError, match=r"wrote nothing to o\.txt"):
        tool.main(["toy", "--text", "in.txt", "--out", "o.txt"])


def test_papers_without_a_tool_are_named_with_those_that_have_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["apply", "plain", "--out", "o"]) == 2
    assert "no tool for paper 'plain'; known: toy" in capsys.readouterr().err
    assert cli.main(["apply"]) == 0
    assert "Upper case of a file." in capsys.readouterr().out


def test_help_shows_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["apply", "toy", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for piece in [
        "--text FILE the file to read (required)",
        "at most 100 % (default 1)",
        "{dash,space}",
        "--no-loud",
        "--overwrite",
        "--params",
    ]:
        assert piece in said
    assert "nested" not in said


def test_a_tool_that_does_not_exist_is_refused_when_it_is_declared() -> None:
    stage = Stage("prepare", "tasks.conformal.datasets:prepare")
    with pytest.raises(DeclarationError, match=r"no function in tasks\.conformal\.datasets called 'prepared'"):
        Paper(slug="toy", title="Toy", arxiv="0", stages=[stage], apply="tasks.conformal.datasets:prepared")
