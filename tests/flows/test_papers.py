"""What every paper of the collection owes its readers. `papers new` starts a paper that fails all of these."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import yaml
from prefect import Flow

from flows.engine import apply, registry
from flows.engine.declare import PROFILES, Paper
from flows.engine.stage import params_type

ROOT = Path(registry.__file__).parents[2]


def papers() -> Iterator[Paper]:
    yield from registry.papers().values()


def none(problems: list[str]) -> None:
    assert not problems, "\n" + "\n".join(problems)


def test_every_paper_has_claims():
    none([f"flows/{p.slug}.py: no claims; write what the abstract says as Claim(...)" for p in papers() if not p.claims])


def test_every_paper_has_a_negative_control():
    none(
        [
            f"flows/{p.slug}.py: no negative control; give a claim control=Control(...)"
            for p in papers()
            if not any(c.control for c in p.claims)
        ]
    )


def test_every_paper_has_a_flow_that_deployments_can_load():
    missing = [p.slug for p in papers() if not isinstance(getattr(importlib.import_module(f"flows.{p.slug}"), "flow", None), Flow)]
    none([f"flows/{slug}.py: no `flow`; end the file with the __getattr__ that `papers new` writes" for slug in missing])


def test_every_stage_has_a_budget_of_its_own():
    problems = []
    for paper in papers():
        for call in ast.walk(parsed(Path("flows", f"{paper.slug}.py"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", getattr(call.func, "attr", "")) == "Stage":
                given = {keyword.arg for keyword in call.keywords}
                if not given & {"budget_min", "shared", None}:
                    problems.append(f"flows/{paper.slug}.py:{call.lineno}: stage without a budget; give budget_min= in minutes")
    none(problems)


def test_every_node_is_written():
    problems = []
    for paper in papers():
        for node in sorted({stage.node for stage in paper.stages if stage.node}):
            module, _, function = node.partition(":")
            if unwritten(parsed(source_of(module)), function):
                problems.append(f"{source_of(module)}: {function} still raises NotImplementedError; write it")
    none(problems)


def test_every_module_of_nodes_has_tests():
    problems = []
    for paper in papers():
        for module in sorted({stage.node.partition(":")[0] for stage in paper.stages if stage.node}):
            source = source_of(module)
            test = Path("tests", *source.parts[:-1], f"test_{source.name}")
            if not (ROOT / test).is_file() or not any(n.startswith("test_") for n in functions(parsed(test))):
                problems.append(f"{test}: holds no test function; test {source}")
    none(problems)


def test_every_tool_has_the_common_options_and_explains_its_own():
    problems = []
    for paper in papers():
        if paper.apply:
            model = params_type(paper.apply)
            apply.parser(paper, model)
            problems += [f"{paper.apply}: no option {name}; add the field" for name in ("seed", "device") if name not in model.model_fields]
            problems += [
                f"{paper.apply}: give {name} a Field(description=...)" for name, f in model.model_fields.items() if not f.description
            ]
    none(problems)


def test_every_paper_has_a_page_with_markers():
    problems = []
    for paper in papers():
        page = ROOT / "docs" / "papers" / f"{paper.slug}.md"
        text = page.read_text() if page.is_file() else ""
        markers = [f"<!-- {name}:{end} -->" for name in ("scorecard", "figures") for end in ("begin", "end")]
        problems += [f"docs/papers/{paper.slug}.md: marker {m} must stand there once" for m in markers if text.count(m) != 1]
        if not paper.summary.strip():
            problems.append(f"flows/{paper.slug}.py: no summary; say in two or three sentences what the paper does")
    none(problems)


def test_every_deviation_has_a_reason():
    none([f"flows/{p.slug}.py: deviation {d.what!r} needs a reason" for p in papers() for d in p.deviations if not d.because.strip()])


def test_every_paper_has_parameters_for_every_profile():
    sections = yaml.safe_load((ROOT / "params.yaml").read_text()) or {}
    wanted = ((p.slug, profile) for p in papers() for profile in PROFILES)
    none([f"params.yaml: no section {slug}.{profile}" for slug, profile in wanted if not (sections.get(slug) or {}).get(profile)])


def test_every_page_and_every_section_belongs_to_a_paper():
    known = set(registry.papers())
    pages = {path.stem for path in (ROOT / "docs" / "papers").glob("*.md")} - {"index"}
    sections = set(yaml.safe_load((ROOT / "params.yaml").read_text()) or {}) - {"shared"}
    none([f"{name}: a page or a section of params.yaml, but no flows/{name}.py" for name in sorted((pages | sections) - known)])


def source_of(module: str) -> Path:
    return Path(*module.split(".")).with_suffix(".py")


def parsed(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def unwritten(tree: ast.Module, function: str) -> bool:
    raised = [node.exc for node in ast.walk(functions(tree)[function]) if isinstance(node, ast.Raise)]
    return any(isinstance(e, ast.Call) and getattr(e.func, "id", "") == "NotImplementedError" for e in raised)
