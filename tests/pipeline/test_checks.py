from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.engine.checks import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    VERIFIED,
    Evidence,
    all_of,
    at_least,
    at_most,
    better_than,
    between,
    first_measured,
    k_of,
)
from flows.engine.declare import Claim, Control
from flows.engine.judge import judge_claim

NUMBERS = st.floats(-100, 100)


def evidence(**named: tuple[float, float, float]) -> Evidence:
    metrics: dict[str, float | None] = {}
    for name, (value, lo, hi) in named.items():
        metrics |= {name: value, f"{name}.lo": lo, f"{name}.hi": hi, f"{name}.n": 5}
    return Evidence(metrics)


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [((1.0, 0.5, 1.5), VERIFIED), ((3.0, 2.5, 3.5), NOT_REPRODUCED), ((2.0, 1.5, 2.5), INCONCLUSIVE), ((1.9, 1.8, 2.0), VERIFIED)],
)
def test_at_most_uses_the_whole_interval(interval, verdict):
    assert at_most("x", 2.0).judge(evidence(x=interval)).verdict == verdict


@given(NUMBERS, st.floats(0, 10), NUMBERS)
def test_at_least_mirrors_at_most(value, half, limit):
    ours = evidence(x=(value, value - half, value + half))
    mirrored = evidence(x=(-value, -value - half, -value + half))
    assert at_least("x", limit).judge(ours).verdict == at_most("x", -limit).judge(mirrored).verdict


def test_a_metric_as_limit_brings_its_own_interval():
    apart = evidence(a=(1, 0.9, 1.1), b=(2, 1.5, 2.5))
    overlapping = evidence(a=(1, 0.9, 1.6), b=(2, 1.5, 2.5))
    assert at_most("a", "b").judge(apart).verdict == VERIFIED
    assert at_most("a", "b").judge(overlapping).verdict == INCONCLUSIVE
    assert at_most("a", "b", factor=2.0, slack=-1.0).judge(overlapping).verdict == VERIFIED  # 2 * [1.5, 2.5] - 1 = [2, 4]


def test_better_than_prefers_the_paired_difference():
    overlapping = {"a": 1.0, "a.lo": 0.0, "a.hi": 2.0, "b": 1.5, "b.lo": 0.5, "b.hi": 2.5}
    assert better_than("a", "b").judge(Evidence(overlapping)).verdict == INCONCLUSIVE
    paired = {**overlapping, "a-b": -0.5, "a-b.lo": -0.6, "a-b.hi": -0.4}
    assert better_than("a", "b").judge(Evidence(paired)).verdict == VERIFIED
    assert better_than("a", "b", higher=True).judge(Evidence(paired)).verdict == NOT_REPRODUCED


@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_trap_19_a_nan_metric_is_inconclusive_and_named(bad):
    outcome = at_least("ours.score", 1.0).judge(Evidence({"ours.score": bad}))
    assert outcome.verdict == INCONCLUSIVE
    assert "ours.score" in outcome.text


def test_a_nan_interval_is_inconclusive_and_named():
    outcome = at_least("x", 1.0).judge(Evidence({"x": 2.0, "x.lo": None, "x.hi": 3.0}))
    assert outcome.verdict == INCONCLUSIVE
    assert "x.lo" in outcome.text


def test_one_repetition_says_nothing_about_the_spread():
    assert at_least("x", 1.0).judge(Evidence({"x": 2.0, "x.n": 1})).verdict == INCONCLUSIVE
    assert at_least("x", 1.0).judge(Evidence({"x": 2.0})).verdict == VERIFIED  # declared exact: no repetitions at all


VERDICTS = {VERIFIED: (2.0, 1.5, 2.5), NOT_REPRODUCED: (0.0, -0.5, 0.5), INCONCLUSIVE: (1.0, 0.5, 1.5)}


@given(st.lists(st.sampled_from([VERIFIED, NOT_REPRODUCED, INCONCLUSIVE]), min_size=1, max_size=5), st.data())
def test_k_of_is_what_enumerating_the_undecided_says(verdicts, data):
    k = data.draw(st.integers(1, len(verdicts)))
    names = [f"m{i}" for i in range(len(verdicts))]
    ours = evidence(**{name: VERDICTS[v] for name, v in zip(names, verdicts, strict=True)})
    outcome = k_of(k, *(at_least(name, 1.0) for name in names)).judge(ours)
    sure, possible = verdicts.count(VERIFIED), len(verdicts) - verdicts.count(NOT_REPRODUCED)
    expected = VERIFIED if sure >= k else NOT_REPRODUCED if possible < k else INCONCLUSIVE
    assert outcome.verdict == expected
    assert len(outcome.parts) == len(verdicts)


def test_operators_compose_and_flatten():
    check = at_least("a", 1) & at_most("b", 2) & between("c", 0, 1)
    assert check == all_of(at_least("a", 1), at_most("b", 2), at_least("c", 0), at_most("c", 1))
    assert check.metrics() == {"a", "b", "c"}
    ours = evidence(a=(2, 1.5, 2.5), b=(5, 4, 6), c=(0.5, 0.4, 0.6))
    assert check.judge(ours).verdict == NOT_REPRODUCED
    assert (at_least("a", 1) | at_most("b", 2)).judge(ours).verdict == VERIFIED


def test_swapping_an_arm_asks_the_control():
    check = at_least("ui.coverage.ames", 0.89) & better_than("ui.coverage.ames", "naive.coverage.ames", higher=True)
    swapped = check.swapped({"ui": "imputed"})
    assert swapped == at_least("imputed.coverage.ames", 0.89) & better_than("imputed.coverage.ames", "naive.coverage.ames", higher=True)


@pytest.mark.parametrize("k", [0, 3])
def test_k_of_refuses_an_impossible_k(k):
    with pytest.raises(ValueError, match=f"got k = {k}"):
        k_of(k, at_least("a", 1), at_least("b", 1))


def test_first_measured_judges_the_check_whose_metrics_are_there():
    check = first_measured(at_least("a.ames", 1), at_least("a.house", 1) & at_least("b.house", 1))
    assert check.metrics() == {"a.ames", "a.house", "b.house"}
    assert check.judge(evidence(**{"a.ames": (2, 1.5, 2.5)})).verdict == VERIFIED
    theirs = evidence(**{"a.house": (0, -1, 0.5), "b.house": (2, 1.5, 2.5)})
    assert check.judge(theirs).verdict == NOT_REPRODUCED
    assert check.swapped({"a": "b"}).judge(theirs).verdict == VERIFIED
    assert "a.ames is missing" in check.judge(evidence()).text


def test_first_measured_refuses_to_judge_nothing():
    with pytest.raises(ValueError, match="at least one check"):
        first_measured()


def judged(control: tuple[float, float, float] | None) -> tuple[str, bool]:
    """Verdict of a claim that holds, and whether its control lost the effect, for a control with this interval (or none measured)."""
    claim = Claim("c", "s", "p", at_least("ours.x", 1), scale="toy", why_scale="w", control=Control("off", swap={"ours": "off"}))
    metrics: dict[str, float | None] = {"ours.x": 2.0, "ours.x.lo": 1.5, "ours.x.hi": 2.5}
    if control:
        metrics |= dict(zip(("off.x", "off.x.lo", "off.x.hi"), control, strict=True))
    row = judge_claim(claim, Evidence(metrics), "cpu")
    return row["verdict"], row["control"]["lost_effect"]


@pytest.mark.parametrize(
    ("control", "verdict", "lost"),
    [
        ((0.0, -0.5, 0.5), VERIFIED, True),
        ((1.0, 0.5, 1.5), VERIFIED, True),  # it may or may not have the effect: not shown
        ((2.0, 1.5, 2.5), INCONCLUSIVE, False),
        (None, INCONCLUSIVE, False),
    ],
)
def test_a_claim_stands_only_where_its_control_does_not_pass(control, verdict, lost):
    assert judged(control) == (verdict, lost)
