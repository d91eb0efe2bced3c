"""From metrics to verdicts: the content of `report/scorecard.json`."""

from __future__ import annotations

import json
import math
from typing import Any

from flows.engine.checks import INCONCLUSIVE, NOT_REPRODUCED, VERIFIED, Evidence, Outcome
from flows.engine.declare import Claim, Paper
from flows.engine.project import Project, results


def scorecard(project: Project, papers: list[Paper], stages: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The whole scorecard.

    Args:
        project: checkout and profile.
        papers: the papers to judge.
        stages: by slug, the rows that say how long each stage took (`name`, `minutes`, `peak_gib`, `outcome`).
    """
    return {"profile": project.profile, "papers": [_paper(project, paper, stages.get(paper.slug, [])) for paper in papers]}


def read_metrics(project: Project, slug: str) -> dict[str, float | None]:
    """All metrics of a paper's stages from its results file; empty if there is none or it cannot be read."""
    try:
        stored = json.loads((project.home / results(slug)).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return {name: value for metrics in stored.get("stages", {}).values() for name, value in metrics.items()}


def judge_claim(claim: Claim, evidence: Evidence, profile: str) -> dict[str, Any]:
    """One claim as a row of the scorecard; a claim whose control does not lose the effect is at best inconclusive."""
    outcome = claim.check.judge(evidence)
    verdict, text = outcome.verdict, outcome.text
    control = None
    if claim.control:
        against = claim.control.against(claim.check).judge(evidence)
        lost = against.verdict == NOT_REPRODUCED
        control = {
            "name": claim.control.name,
            "ours": against.estimate.value if against.estimate else None,
            "lost_effect": lost,
            "text": against.text,
        }
        if verdict == VERIFIED and not lost:
            verdict = INCONCLUSIVE
            text = f"{text}; but the negative control does not lose the effect: {against.text}"
    interval = _interval(outcome)
    return {
        "id": claim.id,
        "statement": claim.statement,
        "paper_says": claim.paper_says,
        "ours": outcome.estimate.value if outcome.estimate else None,
        "interval": interval,
        "n_seeds": outcome.estimate.n if outcome.estimate else None,
        "verdict": verdict,
        "scale": claim.scale_in(profile),
        "why_scale": claim.why_scale,
        "text": text,
        "parts": [{"verdict": part.verdict, "text": part.text} for part in outcome.parts],
        "control": control,
    }


def _paper(project: Project, paper: Paper, stages: list[dict[str, Any]]) -> dict[str, Any]:
    evidence = Evidence(read_metrics(project, paper.slug))
    return {
        "slug": paper.slug,
        "title": paper.title,
        "arxiv": paper.arxiv,
        "profile": project.profile,
        "summary": paper.summary,
        "claims": [judge_claim(claim, evidence, project.profile) for claim in paper.claims],
        "deviations": [{"what": d.what, "because": d.because} for d in paper.deviations],
        "stages": stages,
    }


def _interval(outcome: Outcome) -> list[float | None] | None:
    if outcome.estimate is None:
        return None
    return [end if math.isfinite(end) else None for end in (outcome.estimate.lo, outcome.estimate.hi)]
