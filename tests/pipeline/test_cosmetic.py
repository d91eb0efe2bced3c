from __future__ import annotations

import factory
import pytest

from flows.engine import cosmetic

ACCEPT = (
    "from flows.engine import cosmetic, staleness; from flows.engine.project import Project; "
    "p = Project.here(); print(*cosmetic.accept(p, staleness.stale_steps(p)))"
)


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ("x = 1", "x = 1  # one", True),
        ("def f():\n    return 1", 'def f():\n    """One."""\n    return (1)', True),
        ("class A:\n    pass", 'class A:\n    """A."""\n\n    pass', True),
        ("x = 1", "x = 2", False),
        ("x = 1", "x = 1.0", False),
        ("def f(a=1): return a", "def f(a=2): return a", False),
        ("x = 'text'", "x = 'Text'", False),
        ("x = 1", "x = (", False),
    ],
)
def test_same_tree(before, now, same):
    assert cosmetic.same_tree(before, now) is same


def accept(folder) -> set[str]:
    return set(factory.run(folder, "python", "-c", ACCEPT).stdout.split())


def test_trap_6_a_comment_costs_no_run(toy):
    factory.edit(toy / "tasks/toy/arithmetic.py", "return 2 * x", "return 2 * x  # twice")
    assert {"alpha-train", "beta-train", "shared-base"} <= accept(toy)
    assert factory.dvc(toy, "status").stdout.strip() == "Data and pipelines are up to date."


def test_a_change_of_meaning_is_not_cosmetic(toy):
    factory.edit(toy / "tasks/toy/arithmetic.py", "return 2 * x", "return 3 * x  # thrice")
    assert accept(toy) == set()
    assert "alpha-train" in factory.dvc(toy, "status").stdout


def test_a_comment_beside_a_changed_parameter_is_not_accepted(toy):
    factory.edit(toy / "tasks/toy/alpha.py", '"""Train alpha."""', '"""Train it."""')
    factory.edit(
        toy / "params.yaml",
        "alpha: {cpu: {prepare: {value: 1.0}, train: {value: 0.5}",
        "alpha: {cpu: {prepare: {value: 1.0}, train: {value: 0.6}",
    )
    assert accept(toy) == set()


def test_an_edited_output_is_never_committed(toy):
    factory.edit(toy / "tasks/toy/alpha.py", '"""Train alpha."""', '"""Train it."""')
    (toy / "data/alpha/train/metrics.json").chmod(0o644)
    (toy / "data/alpha/train/metrics.json").unlink()
    (toy / "data/alpha/train/metrics.json").write_text('{"trained.value": 1000.0}\n')
    assert "alpha-train" not in accept(toy)


def test_without_data_nothing_is_accepted(toy):
    import shutil

    shutil.rmtree(toy / "data/alpha/prepare")
    factory.edit(toy / "tasks/toy/alpha.py", '"""Train alpha."""', '"""Train it."""')
    assert "alpha-train" not in accept(toy)
