"""Claim checks: a small algebra of predicates on metrics, each judged with its uncertainty.

A check compares an interval with a threshold. It is `verified` when the whole interval is on the right side, `not reproduced`
when it is wholly on the wrong side, and `inconclusive` when it straddles the threshold or a metric is missing. Checks compose:
``at_most("exceed_rate", "delta") & better_than("mse", "topk.mse")``. The limit of the method: intervals are those that the
node reported, so a node that under-reports its spread gets verdicts that are too sure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

Verdict = Literal["verified", "not reproduced", "inconclusive"]
VERIFIED: Verdict = "verified"
NOT_REPRODUCED: Verdict = "not reproduced"
INCONCLUSIVE: Verdict = "inconclusive"

SUFFIXES = (".lo", ".hi", ".se", ".n")


@dataclass(frozen=True)
class Estimate:
    """A number with its interval; `n` repetitions, and lo = hi = value where the quantity has no spread (n = 1 reported without one)."""

    value: float
    lo: float
    hi: float
    n: int = 1


class Evidence(Mapping[str, Estimate]):
    """Metrics of a paper's stages as estimates, by name; non-finite and null metrics count as missing.

    Args:
        metrics: flat metrics; `name.lo`, `name.hi` and `name.n` are the interval and repetitions of `name`.
    """

    def __init__(self, metrics: Mapping[str, float | None]) -> None:
        self._metrics = dict(metrics)

    def __getitem__(self, name: str) -> Estimate:
        value = self._number(name)
        if value is None:
            raise KeyError(name)
        lo, hi = self._number(f"{name}.lo"), self._number(f"{name}.hi")
        n = self._number(f"{name}.n")
        half_declared = f"{name}.lo" in self._metrics or f"{name}.hi" in self._metrics
        if half_declared and (lo is None or hi is None):
            raise KeyError(f"{name}.lo and {name}.hi")
        if lo is None or hi is None:
            lo, hi = (value, value) if n is None or n > 1 else (-math.inf, math.inf)
        return Estimate(value, lo, hi, int(n or 1))

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._metrics if not name.endswith(SUFFIXES))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _number(self, name: str) -> float | None:
        value = self._metrics.get(name)
        return float(value) if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Outcome:
    """What a check found: the verdict, a sentence, and what decided: the metric, its estimate, and the bound that it met."""

    verdict: Verdict
    text: str
    estimate: Estimate | None = None
    margin: float = math.nan
    parts: tuple[Outcome, ...] = ()
    bound: Estimate | None = None
    relation: Literal["<=", ">=", ""] = ""
    metric: str = ""


class Check:
    """A predicate on metrics. Combine with `&`, `|`, `all_of`, `k_of`."""

    def judge(self, evidence: Evidence) -> Outcome:
        """The verdict on this evidence; never raises for a missing metric, which makes it inconclusive and is named."""
        raise NotImplementedError

    def metrics(self) -> frozenset[str]:
        """Names of all metrics that the check reads."""
        raise NotImplementedError

    def swapped(self, arms: Mapping[str, str]) -> Check:
        """The same check with dot-separated parts of the tested metrics replaced: `{"ui": "naive_imp"}` asks it of the control."""
        raise NotImplementedError

    def __and__(self, other: Check) -> Check:
        return all_of(self, other)

    def __or__(self, other: Check) -> Check:
        return k_of(1, self, other)


@dataclass(frozen=True)
class _Compare(Check):
    """metric <= factor * limit + slack when `sign` is +1, metric >= ... when it is -1."""

    metric: str
    limit: str | float
    sign: int
    factor: float = 1.0
    slack: float = 0.0

    def metrics(self) -> frozenset[str]:
        return frozenset({self.metric, self.limit} if isinstance(self.limit, str) else {self.metric})

    def swapped(self, arms: Mapping[str, str]) -> Check:
        return replace(self, metric=".".join(arms.get(part, part) for part in self.metric.split(".")))

    def judge(self, evidence: Evidence) -> Outcome:
        relation: Literal["<=", ">="] = "<=" if self.sign > 0 else ">="
        try:
            ours = evidence[self.metric]
            bound = self._bound(evidence)
        except KeyError as missing:
            return Outcome(INCONCLUSIVE, f"metric {missing.args[0]} is missing or not a finite number; run the stage that reports it")
        text = f"{self.metric} = {_number(ours)} {relation} {_number(bound)}"
        if self.sign > 0:
            margin, worst, best = bound.value - ours.value, ours.hi <= bound.lo, ours.lo > bound.hi
        else:
            margin, worst, best = ours.value - bound.value, ours.lo >= bound.hi, ours.hi < bound.lo
        verdict = VERIFIED if worst else NOT_REPRODUCED if best else INCONCLUSIVE
        return Outcome(verdict, text, ours, margin, bound=bound, relation=relation, metric=self.metric)

    def _bound(self, evidence: Evidence) -> Estimate:
        limit = evidence[self.limit] if isinstance(self.limit, str) else Estimate(self.limit, self.limit, self.limit)
        ends = sorted((self.factor * limit.lo + self.slack, self.factor * limit.hi + self.slack))
        return Estimate(self.factor * limit.value + self.slack, ends[0], ends[1], limit.n)


@dataclass(frozen=True)
class _Better(Check):
    """One metric below (sign +1) or above (sign -1) another, from their paired difference `a-b` where the node reports it."""

    a: str
    b: str
    sign: int

    def metrics(self) -> frozenset[str]:
        return frozenset({self.a, self.b})

    def swapped(self, arms: Mapping[str, str]) -> Check:
        return replace(self, a=".".join(arms.get(part, part) for part in self.a.split(".")))

    def judge(self, evidence: Evidence) -> Outcome:
        difference = f"{self.a}-{self.b}"
        if difference in set(evidence):
            return _Compare(difference, 0.0, self.sign).judge(evidence)
        return _Compare(self.a, self.b, self.sign).judge(evidence)


@dataclass(frozen=True)
class _KOf(Check):
    """At least `k` of the checks hold; three-valued, so that undecided ones can tip it only when they all matter."""

    k: int
    checks: tuple[Check, ...]

    def metrics(self) -> frozenset[str]:
        return frozenset().union(*(c.metrics() for c in self.checks))

    def swapped(self, arms: Mapping[str, str]) -> Check:
        return replace(self, checks=tuple(c.swapped(arms) for c in self.checks))

    def judge(self, evidence: Evidence) -> Outcome:
        parts = tuple(c.judge(evidence) for c in self.checks)
        yes = [p for p in parts if p.verdict == VERIFIED]
        open_ = [p for p in parts if p.verdict == INCONCLUSIVE]
        no = [p for p in parts if p.verdict == NOT_REPRODUCED]
        if len(yes) >= self.k:
            verdict, deciding = VERIFIED, sorted(yes, key=_margin)[-self.k]
        elif len(yes) + len(open_) < self.k:
            verdict, deciding = NOT_REPRODUCED, min(no, key=_margin)
        else:
            verdict, deciding = INCONCLUSIVE, min(open_, key=_margin)
        share = f"{len(yes)} of {len(parts)} hold"
        text = f"{share}, closest: {deciding.text}" if verdict == VERIFIED else f"{share}; {deciding.text}"
        return replace(deciding, verdict=verdict, text=text, parts=parts)


@dataclass(frozen=True)
class _FirstMeasured(Check):
    """The first of the checks whose metrics are all there, else the one that lacks the fewest."""

    checks: tuple[Check, ...]

    def metrics(self) -> frozenset[str]:
        return frozenset().union(*(c.metrics() for c in self.checks))

    def swapped(self, arms: Mapping[str, str]) -> Check:
        return replace(self, checks=tuple(c.swapped(arms) for c in self.checks))

    def judge(self, evidence: Evidence) -> Outcome:
        measured = set(evidence)
        return min(self.checks, key=lambda c: len(c.metrics() - measured)).judge(evidence)


def at_most(metric: str, limit: str | float, *, factor: float = 1.0, slack: float = 0.0) -> Check:
    """Metric <= factor * limit + slack, with the metric's whole interval; `limit` is a number or another metric."""
    return _Compare(metric, limit, +1, factor, slack)


def at_least(metric: str, limit: str | float, *, factor: float = 1.0, slack: float = 0.0) -> Check:
    """Metric >= factor * limit - slack, with the metric's whole interval; `limit` is a number or another metric."""
    return _Compare(metric, limit, -1, factor, -slack)


def better_than(metric: str, other: str, *, higher: bool = False) -> Check:
    """One metric below another (above, with `higher`).

    Judged from the paired difference, the metric called `<metric>-<other>`, when a node reports it, else from both intervals.
    """
    return _Better(metric, other, -1 if higher else +1)


def between(metric: str, lo: float, hi: float) -> Check:
    """Lo <= metric <= hi, with the metric's whole interval."""
    return at_least(metric, lo) & at_most(metric, hi)


def all_of(*checks: Check) -> Check:
    """Every check holds."""
    flat: list[Check] = []
    for check in checks:
        flat.extend(check.checks if isinstance(check, _KOf) and check.k == len(check.checks) else (check,))
    return k_of(len(flat), *flat)


def k_of(k: int, *checks: Check) -> Check:
    """At least `k` of the checks hold.

    Raises:
        ValueError: unless 1 <= k <= number of checks.
    """
    if not 1 <= k <= len(checks):
        raise ValueError(f"k_of needs 1 <= k <= {len(checks)} checks, got k = {k}")
    return _KOf(k, tuple(checks))


def first_measured(*checks: Check) -> Check:
    """One check per profile, where profiles use different data: judges the first whose metrics were all reported.

    Raises:
        ValueError: for no checks.
    """
    if not checks:
        raise ValueError("first_measured needs at least one check")
    return _FirstMeasured(checks)


def _margin(outcome: Outcome) -> float:
    return outcome.margin if math.isfinite(outcome.margin) else -math.inf


def _number(e: Estimate) -> str:
    if e.lo == e.hi:
        return f"{e.value:.4g}"
    return f"{e.value:.4g} [{e.lo:.4g}, {e.hi:.4g}]"
