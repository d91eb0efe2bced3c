"""From metrics to verdicts: the content of `report/scorecard.json`."""

from __future__ import annotations

import math
from typing import Any

from flows.engine.checks import INCONCLUSIVE, VERIFIED, Estimate, Evidence, Outcome
from flows.engine.declare import Claim, Paper
from flows.engine.project import Project, read_object, results


def scorecard(project: Project, papers: list[Paper], stages: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The whole scorecard.

    Args:
        project: checkout and profile.
        papers: the papers to judge.
        stages: by slug, the rows that say how long each stage took (`name`, `minutes`, `peak_gib`, `outcome`).
    """
    return {"profile": project.profile, "papers": [_paper(project, paper, stages.get(paper.slug, [])) for paper in papers]}


def read_metrics(project: Project, slug: str) -> dict[str, float | None]:
    """All metrics of a paper's stages from its results file; empty if there is none or it cannot be read.

    Null stands for what is no number, and for a name that several stages report: nobody could say which is meant.
    """
    stages = read_object(project.home / results(slug)).get("stages")
    found: dict[str, float | None] = {}
    for metrics in stages.values() if isinstance(stages, dict) else ():
        for name, value in metrics.items() if isinstance(metrics, dict) else ():
            number = isinstance(value, int | float) and not isinstance(value, bool) and name not in found
            found[name] = float(value) if number else None
    return found


def judge_claim(claim: Claim, evidence: Evidence, profile: str) -> dict[str, Any]:
    """One claim as a row of the scorecard; a claim whose control passes too, or was not measured, is at best inconclusive."""
    outcome = claim.check.judge(evidence)
    verdict, text = outcome.verdict, outcome.text
    control = None
    if claim.control:
        against = claim.control.against(claim.check).judge(evidence)
        # A control whose interval straddles the threshold does not show the effect; one that was not measured says nothing.
        lost = against.verdict != VERIFIED and against.estimate is not None
        control = {
            "name": claim.control.name,
            **_numbers(against),
            "lost_effect": lost,
            "text": against.text,
        }
        if verdict == VERIFIED and not lost:
            verdict = INCONCLUSIVE
            text = f"{text}; but the negative control does not lose the effect: {against.text}"
    return {
        "id": claim.id,
        "statement": claim.statement,
        "paper_says": claim.paper_says,
        **_numbers(outcome),
        "verdict": verdict,
        "scale": claim.scale_in(profile),
        "why_scale": claim.why_scale,
        "text": text,
        "parts": [_part(part) for part in outcome.parts],
        "control": control,
    }


def _paper(project: Project, paper: Paper, stages: list[dict[str, Any]]) -> dict[str, Any]:
    metrics = read_metrics(project, paper.slug)
    evidence = Evidence(metrics)
    return {
        "slug": paper.slug,
        "title": paper.title,
        "arxiv": paper.arxiv,
        "profile": project.profile,
        "summary": paper.summary,
        "ran": bool(metrics),
        "claims": [judge_claim(claim, evidence, project.profile) for claim in paper.claims],
        "deviations": [{"what": d.what, "because": d.because} for d in paper.deviations],
        "stages": stages,
    }


def _part(outcome: Outcome) -> dict[str, Any]:
    parts = [_part(part) for part in outcome.parts]
    return {"verdict": outcome.verdict, "text": outcome.text, **_numbers(outcome), "parts": parts}


def _numbers(outcome: Outcome) -> dict[str, Any]:
    """The deciding number, its interval, and the threshold; an open end of an interval is null."""
    ours, bound = outcome.estimate, outcome.bound
    return {
        "metric": outcome.metric,
        "ours": ours.value if ours else None,
        "interval": _ends(ours) if ours else None,
        "n_seeds": ours.n if ours else None,
        "relation": outcome.relation,
        "threshold": bound.value if bound else None,
        "threshold_interval": _ends(bound) if bound else None,
    }


def _ends(estimate: Estimate) -> list[float | None]:
    return [end if math.isfinite(end) else None for end in (estimate.lo, estimate.hi)]
