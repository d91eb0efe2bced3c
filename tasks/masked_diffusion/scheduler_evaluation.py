"""Compare all schedulers on the test programmes of every model: exact match, calls, work, flips, runs; and how work grows with length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import paired, summarise
from tasks.masked_diffusion.arms import REFERENCE, standard_arms
from tasks.masked_diffusion.decoding import Decoded, Specials
from tasks.masked_diffusion.forced import ForcedDenoiser
from tasks.masked_diffusion.prefix_schedule import LspParams
from tasks.masked_diffusion.register_trace import read_programs
from tasks.masked_diffusion.scheduler_calibration import SPECIALS, read_chosen
from tasks.masked_diffusion.schedulers import QuotaParams, Scheduler, decode
from tasks.masked_diffusion.scoring import SCORED, decode_all, table_of

if TYPE_CHECKING:
    import pandas as pd

LSP = ("lsp", "lsp_wide", "lsp_calibrated")
OPPONENTS = (
    *(REFERENCE, "quota_half", "quota_block", "threshold", "threshold_block", "threshold_prefix", "threshold_prefix_whole"),
    *("threshold_dual", "threshold_calibrated", "prophet", "prophet_min", "ar"),
)
ABLATIONS = (
    "lsp_wide",
    "lsp_tau3",
    "fixed_tau",
    "no_snap",
    "no_cache",
    "no_stability",
    "scattered",
    "literal",
    "literal_nostab",
    "keep_draft",
)
SHOWN = ("lsp", "scattered", "threshold", "quota_half", "threshold_prefix", "threshold_dual")
"""Arms of which some answers are drawn."""

COMPARED = ("em", "nfe", "token_forwards", "attn_pairs", "flip_rate")


class CompareParams(Params):
    """Parameters of `evaluate`.

    Attributes:
        seeds: models, each with programmes of its own.
        programs: test programmes of each; None: all.
        base: the scheduler; its ablations turn one switch of it.
        block: tokens per block of the block-wise baselines.
        reduced: arms that decode only a part of the programmes, and which share of them.
        growth: answer lengths at which work is counted without a network.
        device: torch device.
    """

    seeds: int = Field(3, ge=1)
    programs: int | None = Field(None, ge=1)
    base: LspParams = LspParams(window=4)
    block: int = Field(8, ge=1)
    reduced: Mapping[str, float] = {}
    growth: tuple[int, ...] = (64, 128, 256, 512)
    device: str = "cpu"


def pairs() -> list[tuple[str, str]]:
    """Arms whose difference is reported, first minus second."""
    found = [(ours, other) for ours in LSP for other in OPPONENTS]
    found += [(other, "lsp") for other in ABLATIONS]
    found += [(other, REFERENCE) for other in ("literal", "scattered", "ar", "threshold", "threshold_prefix_whole")]
    found += [("scattered", "threshold"), ("lsp", "scattered"), ("ar", "lsp"), ("literal", "threshold"), ("literal", "quota_half")]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Work:
    """One model on which all arms decode."""

    seed: int
    params: CompareParams
    programs: Path
    model: Path
    chosen: Path


@dataclass
class Compared:
    """What one model gave: a table per arm, iterations of the first programmes for the figures."""

    tables: dict[str, pd.DataFrame]
    examples: dict[str, list[Decoded]] = field(default_factory=dict)
    decay: dict[str, list[list[int]]] = field(default_factory=dict)
    flips: dict[str, list[list[float]]] = field(default_factory=dict)


def compare_on_model(work: Work) -> Compared:
    """Every arm on one model's test programmes."""
    from tasks.masked_diffusion.model import load_model

    params = work.params
    prompts, answers = read_programs(work.programs, work.seed, "test", params.programs)
    model = load_model(work.model).to(params.device)
    arms = {**standard_arms(params.base, params.block), **read_chosen(work.chosen, work.seed)}
    result = Compared({})
    for name, scheduler in arms.items():
        count = max(1, round(len(prompts) * params.reduced.get(name, 1.0)))
        found = decode_all(model, prompts[:count], answers[:count], SPECIALS, scheduler, params.device, together=True)
        result.tables[name] = table_of(found, answers[:count], SPECIALS.eos_id)
        result.decay[name] = [one.trace.active for one in found]
        result.flips[name] = [one.trace.flips for one in found]
        if work.seed == 0 and name in SHOWN:
            again = zip(prompts[:8], answers[:8], strict=True)
            result.examples[name] = [
                decode(model, p, len(a), SPECIALS, scheduler, keep_margins=True, device=params.device) for p, a in again
            ]
    return result


def decay_excess(active: Sequence[Sequence[int]], alpha: float, window: int, least: int = 8) -> float:
    """Largest n_(t+1) - ((1 - alpha) n_t + W) over all calls with n_t >= least; not above 0 when the suffix decays geometrically.

    Args:
        active: masked tokens before each call, per answer.
        alpha: share that is committed at least.
        window: W, what snapping may take back.
        least: calls with fewer masked tokens are not looked at.

    >>> decay_excess([[16, 12, 9, 3]], alpha=0.25, window=0), decay_excess([[16, 15, 14]], alpha=0.25, window=0)
    (0.0, 3.0)
    """
    worst = -math.inf
    for sizes in active:
        for now, after in zip(sizes, [*sizes[1:], 0], strict=True):
            if now >= least:
                worst = max(worst, after - ((1 - alpha) * now + window))
    return worst if math.isfinite(worst) else 0.0


def growth_of_work(lengths: Sequence[int], seed: int, base: LspParams, prompt: int = 8) -> dict[str, dict[int, dict[str, float]]]:
    """Work of some schedulers by answer length, on forced predictions with random margins; no network is run.

    Returns:
        arm -> length -> counter -> value. `literal` commits a share alpha of the suffix in every call.
    """
    schedulers: dict[str, Scheduler] = {
        "quota": QuotaParams(),
        "literal": LspParams.model_validate({**base.model_dump(), "tau_min": None, "stability": 0, "window": 0}),
        "literal_uncached": LspParams.model_validate({**base.model_dump(), "tau_min": None, "stability": 0, "window": 0, "cache": "none"}),
    }
    found: dict[str, dict[int, dict[str, float]]] = {name: {} for name in schedulers}
    for length in lengths:
        rng = np.random.default_rng([seed, length])
        denoiser = ForcedDenoiser(prompt, rng.integers(2, 6, length).tolist(), rng.exponential(3.0, length).tolist(), vocabulary=8)
        for name, scheduler in schedulers.items():
            counters = decode(denoiser, [2] * prompt, length, Specials(0), scheduler).counters
            found[name][length] = {"nfe": counters.nfe, "token_forwards": counters.token_forwards, "attn_pairs": counters.attn_pairs}
    return found


def slope(work: Mapping[int, float]) -> float:
    """Exponent of growth: least squares on logarithms."""
    lengths = np.log(np.array(sorted(work), dtype=float))
    values = np.log(np.array([work[n] for n in sorted(work)], dtype=float))
    return float(np.polyfit(lengths, values, 1)[0])


def metrics_of(found: Sequence[Compared], params: CompareParams) -> Metrics:
    """Means over models with intervals, and differences paired by model (over the programmes that both arms decoded)."""
    metrics: Metrics = {}
    for arm in found[0].tables:
        for quantity in SCORED:
            metrics |= summarise(f"{arm}.{quantity}.trace", [float(one.tables[arm][quantity].mean()) for one in found])
    for a, b in pairs():
        for quantity in COMPARED:
            both = [(one.tables[a][quantity], one.tables[b][quantity]) for one in found]
            rows = [min(len(x), len(y)) for x, y in both]
            first = [float(x.head(n).mean()) for (x, _), n in zip(both, rows, strict=True)]
            second = [float(y.head(n).mean()) for (_, y), n in zip(both, rows, strict=True)]
            metrics |= paired(f"{a}.{quantity}.trace-{b}.{quantity}.trace", first, second)
    for arm in ("literal_nostab", "literal", "lsp", "ar"):
        excess = [decay_excess(one.decay[arm], params.base.alpha, params.base.window) for one in found]
        metrics |= {f"{arm}.decay_excess.trace": max(excess)}
    return metrics


def growth_metrics(params: CompareParams) -> tuple[Metrics, dict[str, dict[int, dict[str, float]]]]:
    """Exponents of growth over seeds, and one seed's curves."""
    runs = [growth_of_work(params.growth, seed, params.base) for seed in range(max(params.seeds, 3))]
    metrics: Metrics = {}
    for arm in runs[0]:
        for counter in ("token_forwards", "attn_pairs"):
            exponents = [slope({n: values[counter] for n, values in run[arm].items()}) for run in runs]
            metrics |= summarise(f"{arm}.{counter}_slope.length", exponents)
    return metrics, runs[0]


def evaluate(params: CompareParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<arm>.<metric>.trace`, differences between arms, exponents of growth; `decoded.parquet`; figures."""
    import pandas as pd

    from tasks.common.formats import write_parquet
    from tasks.masked_diffusion import scheduler_figures as figures

    work = [
        Work(seed, params, inputs["prepare"], inputs.file("warmstart", f"model-{seed}"), inputs["train"]) for seed in range(params.seeds)
    ]
    found = list(log.progress(map_parallel(compare_on_model, work), total=len(work), desc="models"))
    metrics = metrics_of(found, params)
    grown, curves = growth_metrics(params)
    metrics |= grown
    rows = [
        table.assign(seed=w.seed, arm=arm, program=np.arange(len(table)))
        for w, one in zip(work, found, strict=True)
        for arm, table in one.tables.items()
    ]
    write_parquet(out / "decoded.parquet", pd.concat(rows, ignore_index=True))
    examples = found[0].examples
    log.figure("commit_map", figures.commit_map(examples))
    log.figure("frontier", figures.frontier(metrics))
    log.figure(
        "active_length", figures.active_length({arm: [one.decay[arm] for one in found] for arm in figures.DECAYING}, params.base.alpha)
    )
    log.figure("flips", figures.flips({arm: [one.flips[arm] for one in found] for arm in figures.FLIPPING}))
    log.figure("margins", figures.margins(examples["lsp"][0]))
    log.figure("appends", figures.appends(examples))
    log.figure("ablations", figures.ablations(metrics))
    log.figure("growth", figures.growth(curves))
    return metrics
