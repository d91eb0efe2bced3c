"""The schedulers that are compared, by name."""

from __future__ import annotations

from tasks.masked_diffusion.prefix_schedule import LspParams
from tasks.masked_diffusion.schedulers import LeftToRightParams, ProphetParams, QuotaParams, Scheduler, ThresholdParams

REFERENCE = "quota"
"""One token per call, the published default: what speed-ups are relative to."""


def lsp_arms(base: LspParams) -> dict[str, Scheduler]:
    """The scheduler and its ablations: one switch is turned in each."""
    floor = base.tau_min if base.tau_min is not None else 2.0

    def turned(**switches: object) -> LspParams:
        return LspParams.model_validate({**base.model_dump(), **switches})

    return {
        "lsp": base,
        "lsp_wide": turned(beta=1.0),
        "lsp_tau3": turned(tau_min=floor + 1),
        "fixed_tau": turned(rule="fixed"),
        "no_snap": turned(window=0),
        "no_cache": turned(cache="none"),
        "no_stability": turned(stability=0),
        "no_stability_wide": turned(stability=0, beta=1.0),
        "scattered": turned(topology="scattered", cache="none"),
        "literal": turned(tau_min=None),
        "literal_nostab": turned(tau_min=None, stability=0),
        "keep_draft": turned(keep_draft=True),
    }


def baseline_arms(block: int) -> dict[str, Scheduler]:
    """Everything that the scheduler is compared with.

    Args:
        block: tokens per block of the block-wise ones.
    """
    return {
        REFERENCE: QuotaParams(),
        "quota_half": QuotaParams(speedup=2),
        "quota_quarter": QuotaParams(speedup=4),
        "quota_random": QuotaParams(speedup=2, order="random"),
        "quota_entropy": QuotaParams(speedup=2, order="entropy"),
        "quota_margin": QuotaParams(speedup=2, order="margin"),
        "quota_block": QuotaParams(speedup=2, block=block),
        "threshold": ThresholdParams(),
        "threshold_07": ThresholdParams(threshold=0.7),
        "threshold_block": ThresholdParams(block=block),
        "threshold_prefix": ThresholdParams(block=block, cache="prefix"),
        "threshold_prefix_whole": ThresholdParams(cache="prefix"),
        "threshold_dual": ThresholdParams(block=block, cache="dual"),
        "prophet": ProphetParams(),
        "prophet_min": ProphetParams(statistic="min"),
        "ar": LeftToRightParams(),
    }


def standard_arms(base: LspParams, block: int) -> dict[str, Scheduler]:
    """All arms by name."""
    return {**lsp_arms(base), **baseline_arms(block)}
