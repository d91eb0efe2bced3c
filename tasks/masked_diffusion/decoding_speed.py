"""Leaf stage that measures time per answer, schedulers side by side in one process with one thread, batch 1.

Rounds take every arm in turn and ratios are taken within a round, so that what else the machine does hits all alike. On a CPU the clock is
that of the process, which stands still while others run. For growth with length the predictions are forced, so that cached
and uncached runs commit the same blocks, through networks of random weights.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field

from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.masked_diffusion.arms import REFERENCE, standard_arms
from tasks.masked_diffusion.decoding import Decoding, Denoiser, Specials
from tasks.masked_diffusion.forced import ForcedDenoiser
from tasks.masked_diffusion.prefix_schedule import LspParams
from tasks.masked_diffusion.register_trace import read_programs
from tasks.masked_diffusion.scheduler_calibration import SPECIALS, read_chosen
from tasks.masked_diffusion.schedulers import Scheduler, decode
from tasks.masked_diffusion.scoring import decode_all

TIMED = (
    *(REFERENCE, "quota_half", "threshold", "threshold_block", "threshold_prefix", "threshold_prefix_whole", "threshold_dual"),
    *("threshold_calibrated", "prophet", "ar", "lsp", "lsp_wide", "lsp_calibrated", "no_stability", "fixed_tau", "no_cache", "literal"),
)
VOCABULARY = 32


class DecodingSpeedParams(Params):
    """Parameters of `evaluate`.

    Attributes:
        seeds: models.
        answers: test programmes that every arm decodes in a round.
        rounds: repetitions.
        base: the scheduler.
        block: tokens per block of block-wise baselines.
        lengths: answer lengths of the second part.
        repeats: independent networks and margins of the second part.
        length_rounds: repetitions there.
        margin: mean of its exponential margins; with a floor of 2, a share 2 / margin of the tokens stops a block.
        width: of these networks, as in training.
        layers: likewise.
        heads: likewise.
        hidden: likewise.
        prompt: tokens before the answer there.
        device: torch device.
    """

    seeds: int = Field(3, ge=1)
    answers: int = Field(8, ge=1)
    rounds: int = Field(3, ge=1)
    base: LspParams = LspParams(window=4)
    block: int = Field(8, ge=1)
    lengths: tuple[int, ...] = (64, 128, 256, 512)
    repeats: int = Field(3, ge=1)
    length_rounds: int = Field(2, ge=1)
    margin: float = Field(30.0, gt=0)
    width: int = Field(128, ge=1)
    layers: int = Field(3, ge=1)
    heads: int = Field(4, ge=1)
    hidden: int = Field(512, ge=1)
    prompt: int = Field(26, ge=1)
    device: str = "cpu"


@dataclass(frozen=True)
class Work:
    """What is timed in one go."""

    seed: int
    params: DecodingSpeedParams
    programs: Path
    model: Path
    chosen: Path


def clock_of(device: str) -> Callable[[], float]:
    """CPU seconds of this process, or wall seconds on a GPU, whose queue is emptied first."""
    if device == "cpu":
        return time.process_time
    import torch

    def seconds() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return seconds


def rounds_of(work: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> list[dict[str, float]]:
    """Seconds of every arm in every round after one that does not count; the order turns round by round."""
    names, found = list(work), []
    for name in names:
        work[name]()
    for number in range(rounds):
        turn = number % len(names)
        row = {}
        for name in names[turn:] + names[:turn]:
            before = clock()
            work[name]()
            row[name] = clock() - before
        found.append(row)
    return found


def time_arms(work: Work) -> list[dict[str, float]]:
    """Seconds per answer of all arms on one model, by round."""
    from tasks.masked_diffusion.model import load_model

    params = work.params
    model = load_model(work.model).to(params.device)
    prompts, answers = read_programs(work.programs, work.seed, "test", params.answers)
    arms = {**standard_arms(params.base, params.block), **read_chosen(work.chosen, work.seed)}

    def run(scheduler: Scheduler) -> Callable[[], object]:
        return lambda: decode_all(model, prompts, answers, SPECIALS, scheduler, params.device)

    rows = rounds_of({name: run(arms[name]) for name in TIMED}, params.rounds, clock_of(params.device))
    return [{name: seconds / len(prompts) for name, seconds in row.items()} for row in rows]


def forced_network(length: int, seed: int, params: DecodingSpeedParams) -> ForcedDenoiser:
    """A network of random weights for this length, whose predictions are replaced by given ones with random margins."""
    import torch

    from tasks.masked_diffusion.model import MaskedDiffusionTransformer, ModelConfig

    config = ModelConfig(VOCABULARY, params.prompt + length, params.width, params.layers, params.heads, params.hidden)
    network = MaskedDiffusionTransformer(config, torch.Generator().manual_seed(seed)).eval().to(params.device)
    rng = np.random.default_rng([seed, length])
    return ForcedDenoiser(
        params.prompt, rng.integers(2, 8, length).tolist(), rng.exponential(params.margin, length).tolist(), VOCABULARY, network
    )


def time_lengths(work: tuple[int, int, DecodingSpeedParams]) -> list[dict[str, float]]:
    """Seconds per answer at one length: cached, uncached, uncached once more, and one token per call (from four of its equal calls)."""
    length, seed, params = work
    denoiser = forced_network(length, seed, params)
    base = params.base.model_dump()
    cached = LspParams.model_validate({**base, "cache": "prefix"})
    uncached = LspParams.model_validate({**base, "cache": "none"})
    prompt = [2] * params.prompt

    def run(scheduler: Scheduler) -> Callable[[], object]:
        return lambda: decode(denoiser, prompt, length, Specials(0), scheduler, device=params.device)

    same = [decode(denoiser, prompt, length, Specials(0), s, device=params.device).trace.committed.tolist() for s in (cached, uncached)]
    if same[0] != same[1]:
        raise RuntimeError("cached and uncached runs committed different blocks on forced predictions")
    arms = {
        "cached": run(cached),
        "uncached": run(uncached),
        "uncached_again": run(uncached),
        "quota": lambda: _calls(denoiser, length, params),
    }
    rows = rounds_of(arms, params.length_rounds, clock_of(params.device))
    return [{**row, "quota": row["quota"] * length / 4} for row in rows]


def _calls(denoiser: Denoiser, length: int, params: DecodingSpeedParams) -> None:
    decoding = Decoding(denoiser, [2] * params.prompt, length, Specials(0), device=params.device)
    for place in range(4):
        found = decoding.predict()
        decoding.commit([place], found.tokens[[place]])


def evaluate(params: DecodingSpeedParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<arm>.latency_{ms,ratio}.trace` over models; `{cached,uncached,quota}.latency_{ms,ratio}.n<length>` over networks."""
    from tasks.masked_diffusion import scheduler_figures as figures

    metrics: Metrics = {}
    work = [
        Work(seed, params, inputs["prepare"], inputs.file("warmstart", f"model-{seed}"), inputs["train"]) for seed in range(params.seeds)
    ]
    rows = list(log.progress(map_parallel(time_arms, work, workers=1), total=len(work), desc="models"))
    for arm in TIMED:
        metrics |= summarise(f"{arm}.latency_ms.trace", [1000 * _middle(model, arm) for model in rows])
        metrics |= summarise(f"{arm}.latency_ratio.trace", [_ratio(model, arm, REFERENCE) for model in rows])
    for a, b in (
        ("lsp", "threshold_prefix"),
        ("lsp", "threshold_prefix_whole"),
        ("lsp", "threshold_dual"),
        ("lsp_calibrated", "threshold_calibrated"),
    ):
        metrics |= summarise(f"{a}.latency_against_{b}.trace", [_ratio(model, a, b) for model in rows])
    for length in log.progress(params.lengths, desc="lengths"):
        items = [(length, seed, params) for seed in range(params.repeats)]
        found = list(map_parallel(time_lengths, items, workers=1))
        for arm in ("cached", "uncached", "quota"):
            metrics |= summarise(f"{arm}.latency_ms.n{length}", [1000 * _middle(one, arm) for one in found])
        for arm in ("cached", "uncached_again"):
            metrics |= summarise(f"{arm}.latency_ratio.n{length}", [_ratio(one, arm, "uncached") for one in found])
        metrics |= summarise(f"cached.latency_ratio_to_quota.n{length}", [_ratio(one, "cached", "quota") for one in found])
    log.figure("latency", figures.latency(metrics, params.lengths))
    return metrics


def _middle(rows: Sequence[Mapping[str, float]], arm: str) -> float:
    return statistics.median(row[arm] for row in rows)


def _ratio(rows: Sequence[Mapping[str, float]], arm: str, other: str) -> float:
    return statistics.median(row[arm] / row[other] for row in rows)
