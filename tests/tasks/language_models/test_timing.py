from __future__ import annotations

import time

import pytest

from tasks.language_models import timing
from tasks.language_models.timing import Rounds, interleaved


@pytest.fixture
def clock(monkeypatch):
    """A clock that only `spend` moves."""
    now = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: now[0])
    return now


def spend(clock, seconds, calls=None, name=""):
    def action():
        clock[0] += seconds
        if calls is not None:
            calls.append(name)

    return action


def test_every_arm_is_warmed_up_then_has_its_turn_in_a_turning_order(clock):
    calls: list[str] = []
    arms = {name: spend(clock, 0.002, calls, name) for name in "abc"}
    found = interleaved(arms, rounds=3, repeats=1, warm_up=2)
    assert calls[:9] == list("aaabbbccc")  # two to warm up, one to see how long it takes
    assert calls[9:] == list("abcbcacab")
    assert found.milliseconds == {name: pytest.approx([2.0] * 3) for name in "abc"}
    assert found.clock == "process"


def test_ratios_are_taken_within_a_round_against_the_fastest_baseline():
    found = Rounds({"a": [4.0, 8.0], "b": [6.0, 6.0], "new": [2.0, 2.0]}, 1, "process")
    assert found.best(["a", "b"]) == [4.0, 6.0]
    assert found.ratios(["a", "b"], "new") == [2.0, 3.0]
    assert found.ratios("a", "new") == [2.0, 4.0]
    assert found.median("a") == 6.0


def test_short_calls_are_grouped_and_divided_again(clock):
    calls: list[str] = []
    found = interleaved({"a": spend(clock, 0.001, calls, "a")}, rounds=1, repeats=1, warm_up=0, minimum_ms=20)
    assert len(calls) == 1 + 20
    assert found.median("a") == pytest.approx(1.0)


def test_the_median_of_a_turn_leaves_an_outlier_out(clock):
    times = iter([0, 1, 1, 50])

    def action():
        clock[0] += next(times) / 1000

    assert interleaved({"a": action}, rounds=1, repeats=3, warm_up=0).median("a") == pytest.approx(1.0)


def test_the_clock_of_a_cpu_is_the_process(clock):
    assert timing.clock_of("cpu")[2] == "process"


@pytest.mark.parametrize(("arms", "rounds", "repeats"), [({}, 1, 1), ({"a": int}, 0, 1), ({"a": int}, 1, 0)])
def test_nothing_to_time_is_refused(arms, rounds, repeats):
    with pytest.raises(ValueError, match="at least one arm, round and repeat"):
        interleaved(arms, rounds=rounds, repeats=repeats)
