"""The order of steps, and the report of how they ended."""

from __future__ import annotations

import random

import pytest

from flows.engine.declare import Stage
from flows.engine.outcome import Ended, Report, duration
from flows.engine.plan import Step, downstream
from flows.engine.schedule import Schedule


def step(name: str, *upstream: str, device: str = "cpu") -> Step:
    slug, _, stage = name.partition("-")
    declared = Stage(stage.split("-")[0], "tasks.x:y", device=device)
    return Step(name=name, kind="node", slug=slug, stage=stage, cmd="", upstream=upstream, declared=declared)


def graph(*steps: Step) -> dict[str, Step]:
    return {s.name: s for s in steps}


TWO_PAPERS = graph(
    step("a-prepare"),
    step("shared-base"),
    step("b-prepare"),
    step("a-train", "a-prepare", "shared-base"),
    step("b-train", "b-prepare", "shared-base"),
    step("a-evaluate", "a-train"),
    step("b-evaluate", "b-train"),
)


def names(steps: list[Step]) -> list[str]:
    return [s.name for s in steps]


def test_shared_stages_go_first_then_paper_after_paper():
    schedule = Schedule(TWO_PAPERS, workers=1)
    order = []
    while schedule.unfinished:
        (started,) = schedule.start()
        order.append(started.name)
        schedule.end(Ended(started.name, "executed"))
    assert order == ["shared-base", "a-prepare", "a-train", "a-evaluate", "b-prepare", "b-train", "b-evaluate"]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_starts_before_what_it_needs_whatever_ends_when(seed):
    rng = random.Random(seed)
    workers = rng.randint(1, 5)
    steps: dict[str, Step] = {}
    for number in range(25):
        above = rng.sample(list(steps), k=min(len(steps), rng.randint(0, 3)))
        made = step(f"{rng.choice('abc')}-train-n{number}", *above)
        steps[made.name] = made
    bad = set(rng.sample(list(steps), k=3))
    schedule, running, done, lost = Schedule(steps, workers), set(), set(), set()
    while schedule.unfinished:
        for started in schedule.start():
            assert set(started.upstream) <= done
            running.add(started.name)
        assert 0 < len(running) <= workers
        name = rng.choice(sorted(running))
        running.remove(name)
        failed = name in bad
        lost |= {ended.name for ended in schedule.end(Ended(name, "failed" if failed else "executed"))}
        if not failed:
            done.add(name)
    ran_and_failed = {name for name in bad if schedule.ended[name].outcome == "failed"}
    assert lost == downstream(steps, ran_and_failed) - ran_and_failed
    assert done == set(steps) - downstream(steps, bad)


def test_a_failure_blocks_what_needs_it_and_nothing_else():
    schedule = Schedule(TWO_PAPERS, workers=3)
    assert names(schedule.start()) == ["shared-base", "a-prepare", "b-prepare"]
    blocked = schedule.end(Ended("a-prepare", "over-budget"))
    assert [(e.name, e.outcome, e.message) for e in blocked] == [
        ("a-train", "not run", "needs a-prepare, and a-prepare over-budget"),
        ("a-evaluate", "not run", "needs a-train, and a-prepare over-budget"),
    ]
    schedule.end(Ended("shared-base", "executed"))
    schedule.end(Ended("b-prepare", "restored"))
    assert names(schedule.start()) == ["b-train"]


def test_a_stage_that_measures_speed_runs_alone():
    steps = graph(step("a-evaluate-speed"), step("b-prepare"), step("c-prepare", "b-prepare"))
    schedule = Schedule(steps, workers=3)
    assert names(schedule.start()) == ["a-evaluate-speed"]
    assert schedule.start() == []
    schedule.end(Ended("a-evaluate-speed", "executed"))
    assert names(schedule.start()) == ["b-prepare"]


def test_one_graphics_card_serves_one_stage_at_a_time():
    steps = graph(step("a-train", device="gpu"), step("b-train", device="gpu"), step("c-train"))
    assert names(Schedule(steps, workers=3, profile="gpu").start()) == ["a-train", "c-train"]
    assert names(Schedule(steps, workers=3, profile="cpu").start()) == ["a-train", "b-train", "c-train"]


def test_no_worker_is_refused():
    with pytest.raises(ValueError, match="got 0"):
        Schedule({}, workers=0)


def test_the_report_names_what_failed_and_what_could_not_run():
    steps = {
        e.name: e
        for e in (
            Ended("shared-base", "restored", 1.0),
            Ended("a-train", "failed", 61.0, "ValueError: no"),
            Ended("a-results", "not run"),
            Ended("b-results", "executed", 2.0),
            Ended("scorecard", "executed"),
        )
    }
    report = Report("cpu", steps, {"a": ("shared-base", "a-train", "a-results"), "b": ("shared-base", "b-results")}, 70.0)
    assert not report.ok
    assert report.failed == ["a-train"]
    assert report.failed_papers == ["a"]
    assert report.headline() == "1 of 2 papers failed (a): a-train failed"
    text = report.render()
    assert "a-train: ValueError: no" in text
    assert "not run, since what they need failed: a-results" in text
    assert "  b  ok      1 executed, 1 restored, 3.0 s" in text
    assert "| a-train | failed | 1 min 1 s | ValueError: no |" in report.markdown()
    assert report.to_json()["stages"]["a-train"] == {"outcome": "failed", "seconds": 61.0, "message": "ValueError: no"}


def test_a_failed_end_is_a_failure_though_every_paper_is_done():
    report = Report(
        "cpu", {"a-results": Ended("a-results", "executed"), "track": Ended("track", "failed", 1, "no disk")}, {"a": ("a-results",)}
    )
    assert not report.ok
    assert report.failed_papers == []
    assert report.headline() == "the papers are done, but the end failed: track failed"


@pytest.mark.parametrize(("seconds", "text"), [(0.04, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 0 s"), (3725, "62 min 5 s")])
def test_durations_for_people(seconds, text):
    assert duration(seconds) == text
