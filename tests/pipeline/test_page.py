"""What people read: the page, the README table and the generated parts of the docs, from hand-made scorecards."""

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from factory import ROOT

from flows.engine import docs, interval, judge, page, plan
from flows.engine.checks import at_least, at_most, better_than
from flows.engine.declare import Claim, Control, Deviation, Paper, Stage
from flows.engine.project import Project
from tasks.common.formats import write_json

PNG = bytes.fromhex("89504e470d0a1a0a")
NODE = "tasks.tabular.rdatasets:load_table"


def paper(slug: str = "alpha", **changes: Any) -> Paper:
    claim = Claim(
        "small", "It is <b>small</b>.", "at most 1 | 2", at_most("ours.x", 1.0), "toy", "arithmetic", Control("off", {"ours": "off"})
    )
    declared: dict[str, Any] = {
        "title": "A & B",
        "arxiv": "2512.00536",
        "stages": [Stage("evaluate", NODE, budget_min=3, metrics=["{ours,off,other}.x"])],
        "claims": [
            claim,
            Claim("both", "Both.", "yes", at_least("ours.x", 0.0) & better_than("ours.x", "other.x"), "reduced", "same data"),
        ],
        "deviations": [Deviation("fewer rows", because="time")],
        "figures": ["second"],
    }
    return Paper(slug=slug, **{**declared, **changes})


def metrics(**values: tuple[float, float, float, int]) -> dict[str, float]:
    return {
        name: number
        for arm, (value, lo, hi, n) in values.items()
        for name, number in {f"{arm}.x": value, f"{arm}.x.lo": lo, f"{arm}.x.hi": hi, f"{arm}.x.n": n}.items()
    }


GOOD = metrics(ours=(0.5, 0.4, 0.6, 5), off=(2.0, 1.5, 2.5, 5), other=(3.0, 2.9, 3.1, 5))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "README.md").write_text("before\n<!-- scorecard:begin -->\nold\n<!-- scorecard:end -->\nafter\n")
    (tmp_path / "docs/papers").mkdir(parents=True)
    (tmp_path / "docs/figures/alpha").mkdir(parents=True)
    return Project(tmp_path)


def card(project: Project, papers: list[Paper], stored: dict[str, float | None] | None, **changes: Any) -> dict[str, Any]:
    """A scorecard as the stage writes it; `changes` go to every paper's row."""
    minutes = None if stored is None else 0.51
    stages = {}
    for p in papers:
        write_json(project.root / f"report/results/{p.slug}.json", {"stages": {} if stored is None else {"evaluate": stored}})
        stages[p.slug] = [{"name": f"{p.slug}-evaluate", "minutes": minutes, "peak_gib": minutes, "outcome": "executed"}]
    made = judge.scorecard(project, papers, stages)
    for row in made["papers"]:
        row.update({"fresh": True, "stale": [], **changes})
    return made


def render(project: Project, stored: dict[str, float | None] | None, p: Paper | None = None, **changes: Any) -> str:
    papers = [p or paper()]
    return page.render(project, card(project, papers, stored, **changes), papers)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def words(text: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", re.sub(r"(?s)<(style|script)>.*?</\1>", "", text)).split())


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"ours": 0.91234, "interval": [0.9, 0.95]}, "0.9123 [0.9, 0.95]"),
        ({"ours": 2.0, "interval": [2.0, 2.0]}, "2 (exact)"),
        ({"ours": 2.0, "interval": [None, None]}, "2 (no interval: one run)"),
        ({"ours": 2.0, "interval": [None, 3.0]}, "2 [−∞, 3]"),
        ({"ours": 2.0, "interval": None}, "2 (no interval: one run)"),
        ({"ours": None, "interval": None}, "–"),
    ],
)
def test_a_number_is_shown_with_its_interval(row: dict[str, Any], shown: str):
    assert interval.text(row) == shown


def drawn(relation: str, ours: float, lo: float | None, hi: float | None, limit: float) -> dict[str, dict[str, float]]:
    row = {"ours": ours, "interval": [lo, hi], "relation": relation, "threshold": limit, "threshold_interval": [limit, limit]}
    shapes: dict[str, dict[str, float]] = {}
    for _, attributes in Tags(interval.drawing(row)).found:
        numbers = {k: float(v) for k, v in attributes.items() if v and re.fullmatch(r"-?[\d.]+", v)}
        shapes.setdefault(str(attributes.get("class")), numbers)
    return shapes


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("shift", [-3.0, 0.0, 3.0])
def test_the_drawing_keeps_the_order_of_the_numbers(scale: float, shift: float):
    ours, lo, hi, limit = (scale * (v + shift) for v in (0.5, 0.2, 0.9, 1.5))
    shapes = drawn("<=", ours, lo, hi, limit)
    spread, cut = shapes["spread"], shapes["limit"]["x1"]
    assert interval.LEFT < spread["x1"] < shapes["ours"]["cx"] < spread["x2"] < cut < interval.RIGHT


def test_the_side_on_which_the_claim_holds_is_shaded():
    low, high = drawn("<=", 1.0, 0.9, 1.1, 2.0), drawn(">=", 1.0, 0.9, 1.1, 2.0)
    assert low["holds"]["x"] == interval.LEFT
    assert low["holds"]["x"] + low["holds"]["width"] == pytest.approx(low["limit"]["x1"])
    assert high["holds"]["x"] == pytest.approx(high["limit"]["x1"])
    assert high["holds"]["x"] + high["holds"]["width"] == pytest.approx(interval.RIGHT)


def test_an_open_interval_reaches_the_edges_and_is_marked():
    spread = drawn("<=", 1.0, None, None, 2.0)["spread open"]
    assert (spread["x1"], spread["x2"]) == (interval.LEFT, interval.RIGHT)


@pytest.mark.parametrize("missing", [{"ours": None}, {"threshold": None}, {"ours": math.nan}, {"threshold": math.inf}])
def test_nothing_is_drawn_without_a_number_and_a_threshold(missing: dict[str, Any]):
    row = {"ours": 1.0, "interval": [1, 1], "relation": "<=", "threshold": 2.0, "threshold_interval": [2, 2]}
    assert interval.drawing(row)
    assert interval.drawing({**row, **missing}) == ""


def test_the_page_says_of_a_claim_all_that_was_found(project: Project):
    text = words(render(project, GOOD))
    for said in (
        "at most 1 | 2",
        "0.5 [0.4, 0.6]",
        "5 runs ours.x",
        "off: 2 [1.5, 2.5] – loses the effect",
        "ours.x = 0.5 [0.4, 0.6] &lt;= 1",
    ):
        assert said in text
    for said in (
        "Why toy scale can show it arithmetic",
        "fewer rows time",
        "2512.00536",
        "up to date",
        "the deciding one of 2 parts, of which 2 hold",
    ):
        assert said in text


def test_a_verdict_never_stands_without_its_scale(project: Project):
    text = render(project, GOOD)
    badges = re.findall(r'(?s)<span class="badge.*?<span class="scale">(.*?)</span>', text)
    assert text.count('class="badge') == len(badges) == 4
    assert all(badge.split()[0] in ("toy", "reduced", "paper") for badge in badges)


@pytest.mark.parametrize(("scale", "excused"), [("toy", True), ("reduced", False)])
def test_not_reproduced_at_toy_scale_is_said_to_mean_nothing(project: Project, scale: Any, excused: bool):
    claim = Claim("c", "Small.", "1", at_most("ours.x", 0.1), scale, "why")
    declared = paper(claims=[claim])
    assert ('class="toy-note"' in render(project, GOOD, declared)) == excused
    table = docs.readme_table(card(project, [declared], GOOD))
    assert "✗ not reproduced" in table
    assert (docs.TOY in table) == excused


def test_a_control_that_keeps_the_effect_is_shown_as_such(project: Project):
    stored = {**GOOD, **metrics(off=(0.5, 0.4, 0.6, 5))}
    assert "is not shown to lose the effect" in words(render(project, stored))
    assert "**no**" in docs.paper_tables(card(project, [paper()], stored)["papers"][0])


def test_text_from_outside_is_escaped(project: Project):
    evil = "<script>alert(1)</script>"
    declared = paper(title=evil, summary=evil, deviations=[Deviation(evil, because=evil)])
    text = render(project, GOOD, declared, fresh=False, stale=[{"name": evil, "reason": evil}])
    assert evil not in text
    assert [tag for tag, _ in Tags(text).found].count("script") == 1
    assert "<script" not in docs.paper_tables(card(project, [declared], GOOD)["papers"][0])
    assert "at most 1 \\| 2" in docs.readme_table(card(project, [declared], GOOD))


def test_the_page_fetches_nothing(project: Project):
    (project.root / "docs/figures/alpha/first.png").write_bytes(PNG)
    text = render(project, GOOD)
    loaded = [value for tag, attributes in Tags(text).found for name, value in attributes.items() if name in ("src", "href") and tag != "a"]
    assert len(loaded) == 2
    assert all(str(value).startswith("data:") for value in loaded)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest", text)


def test_figures_stand_in_the_order_of_the_declaration(project: Project):
    for name in ("first", "second", "third-part"):
        (project.root / f"docs/figures/alpha/{name}.png").write_bytes(PNG)
    assert [f["caption"] for f in page.figures(project, "alpha", ["second", "gone"])] == ["Second", "First", "Third part"]
    assert re.findall(r"!\[(.*?)\]\((.*?)\)", docs.paper_figures(project, "alpha", ["second"])) == [
        ("Second", "../figures/alpha/second.png"),
        ("First", "../figures/alpha/first.png"),
        ("Third part", "../figures/alpha/third-part.png"),
    ]


def test_a_paper_that_never_ran_says_so_everywhere(project: Project):
    made = card(project, [paper()], None, fresh=False, stale=[{"name": "alpha-evaluate", "reason": "new stage, never run"}])
    text = words(page.render(project, made, [paper()]))
    assert "not run yet" in text
    assert "make reproduce PAPER=alpha" in text
    assert "the verdicts are those of the last run" not in text
    assert "not run yet" in docs.readme_table(made)
    assert "Not run yet" in docs.paper_tables(made["papers"][0])


def test_a_stale_paper_names_its_stale_stages(project: Project):
    stale = [{"name": "alpha-evaluate", "reason": "module tasks/x.py"}]
    made = card(project, [paper()], GOOD, fresh=False, stale=stale)
    text = words(page.render(project, made, [paper()]))
    assert "the verdicts are those of the last run. Stale: alpha-evaluate module tasks/x.py" in text
    assert "`alpha-evaluate` (module tasks/x.py)" in docs.paper_tables(made["papers"][0])
    assert "(stale)" in docs.readme_table(made)


def test_missing_numbers_are_dashes(project: Project):
    stored: dict[str, float | None] = {**GOOD, "ours.x": None}
    made = card(project, [paper()], stored)
    text = words(page.render(project, made, [paper()]))
    assert "nan" not in text.lower().split()
    assert "None" not in text
    assert "– no number" in text
    assert "| – |" in docs.readme_table(made)


def test_empty_collection_and_paper_without_claims(project: Project):
    assert "No paper is declared yet" in page.render(project, {"profile": "cpu", "papers": []}, [])
    assert "No claims yet" in docs.readme_table({"papers": []})
    assert "declares no claims yet" in render(project, GOOD, paper(claims=[]))


def test_the_page_depends_on_nothing_but_its_inputs(project: Project):
    made = card(project, [paper(), paper("beta")], GOOD)
    page.write_page(project, made, [paper(), paper("beta")])
    first = project.page.read_bytes()
    page.write_page(project, made, [paper(), paper("beta")])
    assert project.page.read_bytes() == first
    assert [path.name for path in project.page.parent.iterdir() if path.is_file()] == ["index.html"]


@pytest.mark.parametrize(
    ("profile", "command"),
    [("cpu", "dvc repro alpha-results"), ("gpu", "dvc --cd gpu repro alpha-results"), ("smoke", "papers run alpha --profile smoke")],
)
def test_commands_are_those_of_the_profile(tmp_path: Path, profile: Any, command: str):
    assert any(command in entry["command"] for entry in page.commands(Project(tmp_path, profile), "alpha"))


def test_the_readme_keeps_what_stands_around_the_table(project: Project):
    made = card(project, [paper()], GOOD)
    for _ in range(2):
        docs.write_readme(project, made)
        text = (project.root / "README.md").read_text()
        assert text.startswith("before\n<!-- scorecard:begin -->\n")
        assert text.endswith("<!-- scorecard:end -->\nafter\n")
        assert "old" not in text
        assert text.count("✓ verified (toy)") == 1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nothing", "scorecard:begin"),
        ("<!-- scorecard:begin -->", "scorecard:end"),
        ("<!-- scorecard:end --><!-- scorecard:begin -->", "swap"),
        ("<!-- scorecard:begin --><!-- scorecard:begin --><!-- scorecard:end -->", "found 2 times"),
    ],
)
def test_wrong_markers_are_refused_with_the_file_and_the_marker(project: Project, text: str, named: str):
    (project.root / "README.md").write_text(text)
    with pytest.raises(docs.MarkerError, match=rf"README\.md.*{named}"):
        docs.write_readme(project, card(project, [paper()], GOOD))
    assert (project.root / "README.md").read_text() == text


def test_the_docs_are_written_all_or_none(project: Project):
    good = "# a\n" + "".join(f"<!-- {name}:{end} -->\n" for name in ("scorecard", "figures") for end in ("begin", "end"))
    papers = [paper(), paper("beta")]
    made = card(project, papers, GOOD)
    (project.root / "docs/papers/alpha.md").write_text(good)
    with pytest.raises(docs.MarkerError, match=r"beta\.md is missing"):
        docs.write_docs(project, made, papers)
    assert (project.root / "docs/papers/alpha.md").read_text() == good
    (project.root / "docs/papers/beta.md").write_text(good)
    docs.write_docs(project, made, papers)
    assert all("`off`" not in (project.root / f"docs/papers/{s}.md").read_text() for s in ("alpha", "beta"))
    assert all("| `small` | off | 2 [1.5, 2.5] | yes |" in (project.root / f"docs/papers/{s}.md").read_text() for s in ("alpha", "beta"))


def test_the_scorecard_stage_depends_on_what_draws_it():
    step = plan.build(Project(ROOT))[plan.SCORECARD]
    drawn_with = {*step.code, *step.data}
    files = {path.relative_to(ROOT).as_posix() for path in page.TEMPLATES.iterdir()}
    assert len(files) == 3
    assert files | {"flows/engine/page.py", "flows/engine/docs.py", "flows/engine/interval.py", "flows/engine/judge.py"} <= drawn_with
