"""How a run went: the outcome of every step, and the report that people read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal["executed", "restored", "up-to-date", "cosmetic", "failed", "over-budget", "not run"]
OUTCOMES: tuple[Outcome, ...] = ("executed", "restored", "cosmetic", "up-to-date", "failed", "over-budget", "not run")
BAD: tuple[Outcome, ...] = ("failed", "over-budget", "not run")


@dataclass(frozen=True)
class Ended:
    """How one step ended; `message` says why it did not succeed."""

    name: str
    outcome: Outcome
    seconds: float = 0.0
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether what needs this step may run."""
        return self.outcome not in BAD


@dataclass(frozen=True)
class Report:
    """The outcome of a run.

    Attributes:
        profile: the profile that ran.
        steps: every step, in the order of the plan, the scorecard and track last.
        papers: by slug, the names of the steps that its results depend on, shared ones included.
        seconds: from start to end.
    """

    profile: str
    steps: Mapping[str, Ended]
    papers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every step succeeded."""
        return all(ended.ok for ended in self.steps.values())

    @property
    def failed(self) -> list[str]:
        """Names of the steps that failed, over budget included."""
        return [ended.name for ended in self.steps.values() if ended.outcome in ("failed", "over-budget")]

    @property
    def failed_papers(self) -> list[str]:
        """Slugs of the papers of which a step failed or could not run."""
        return [slug for slug, names in self.papers.items() if any(not self.steps[name].ok for name in names)]

    def outcomes(self) -> dict[str, str]:
        """Outcome by step."""
        return {name: ended.outcome for name, ended in self.steps.items()}

    def headline(self) -> str:
        """One line: what happened, or which papers failed, at which stages."""
        if self.ok:
            return f"{self._counts(list(self.steps))} in {duration(self.seconds)}"
        broken = [self.steps[name] for name in self.failed]
        papers = self.failed_papers
        who = (
            f"{len(papers)} of {len(self.papers)} papers failed ({', '.join(papers)})"
            if papers
            else "the papers are done, but the end failed"
        )
        return f"{who}: {'; '.join(f'{e.name} {e.outcome}' for e in broken)}"

    def render(self) -> str:
        """The report as text, a line per paper and one per failure."""
        width = max((len(slug) for slug in self.papers), default=0)
        failed = self.failed_papers
        lines = [f"{self.profile} profile: {self.headline()}"]
        for slug, names in self.papers.items():
            spent = sum(self.steps[name].seconds for name in names)
            word = "FAILED" if slug in failed else "ok"
            lines.append(f"  {slug:<{width}}  {word:<6}  {self._counts(names)}" + (f", {duration(spent)}" if spent else ""))
        lines += [f"  {name}: {self.steps[name].message or self.steps[name].outcome}" for name in self.failed]
        blocked = [ended.name for ended in self.steps.values() if ended.outcome == "not run"]
        if blocked:
            lines.append(f"  not run, since what they need failed: {', '.join(blocked)}")
        return "\n".join(lines)

    def markdown(self) -> str:
        """The report as Markdown, a table row per step that was not up to date."""
        rows = [
            f"| {e.name} | {e.outcome} | {duration(e.seconds)} | {_cell(e.message)} |"
            for e in self.steps.values()
            if e.outcome != "up-to-date"
        ]
        fresh = sum(e.outcome == "up-to-date" for e in self.steps.values())
        table = ["", "| stage | outcome | time | why |", "| --- | --- | --- | --- |", *rows] if rows else []
        return "\n".join([f"**{self.profile}**: {self.headline()}", *table, "", f"{fresh} of {len(self.steps)} stages were up to date."])

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "profile": self.profile,
            "ok": self.ok,
            "failed_papers": self.failed_papers,
            "seconds": round(self.seconds, 1),
            "stages": {e.name: {"outcome": e.outcome, "seconds": round(e.seconds, 1), "message": e.message} for e in self.steps.values()},
        }

    def _counts(self, names: list[str] | tuple[str, ...]) -> str:
        counts = Counter(self.steps[name].outcome for name in names)
        return ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]) or "nothing to do"


def duration(seconds: float) -> str:
    """Seconds for people: `3.2 s`, `4 min 10 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
