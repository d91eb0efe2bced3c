"""Tune schedulers on programmes that no comparison uses: the cheapest setting that costs at most a point of accuracy.

The longest-stable-prefix scheduler and the threshold scheduler are tuned by the same rule, on the same programmes. By default the
rival has a few settings more to choose from (15 against 13), never fewer. The reference is one token per call.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, TypeAdapter

from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.masked_diffusion.decoding import Denoiser, Specials
from tasks.masked_diffusion.prefix_schedule import LspParams
from tasks.masked_diffusion.register_trace import DELIMITER, EOS, MASK, read_programs
from tasks.masked_diffusion.schedulers import QuotaParams, Scheduler, ThresholdParams
from tasks.masked_diffusion.scoring import decode_all, table_of

Cost = Literal["nfe", "token_forwards"]
SPECIALS = Specials(MASK, EOS, frozenset({DELIMITER}))
"""Of the register traces."""


class CalibrationParams(Params):
    """Parameters of `calibrate`.

    Attributes:
        seeds: models.
        programs: calibration programmes of each.
        loss: exact match that a setting may lose against the reference.
        cost: what is minimised among settings that keep it; ties go to the other one.
        stability: of the scheduler.
        alpha: values.
        beta: values.
        tau_min: values.
        window: values; tried with the best of the others.
        threshold: values, for the threshold scheduler.
        block: values; null is the whole answer.
        caches: values.
        device: torch device.
    """

    seeds: int = Field(3, ge=1)
    programs: int = Field(64, ge=1)
    loss: float = Field(0.01, ge=0)
    cost: Cost = "nfe"
    stability: int = Field(1, ge=0)
    alpha: tuple[float, ...] = (0.25, 0.5)
    beta: tuple[float, ...] = (0.5, 1.0)
    tau_min: tuple[float, ...] = (1.0, 2.0, 3.0)
    window: tuple[int, ...] = (0, 4)
    threshold: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9)
    block: tuple[int | None, ...] = (8, None)
    caches: tuple[Literal["prefix", "dual"], ...] = ("prefix", "dual")
    device: str = "cpu"


@dataclass(frozen=True)
class Trial:
    """A setting and what it gave on the calibration programmes."""

    scheduler: Scheduler
    em: float
    nfe: float
    token_forwards: float


def cheapest(trials: Sequence[Trial], reference: float, loss: float, cost: Cost) -> Trial:
    """The cheapest trial whose exact match is at least reference - loss; the most exact one where there is none.

    Raises:
        ValueError: for no trials.
    """
    if not trials:
        raise ValueError("no settings to choose from; give each of them a value")
    kept = [trial for trial in trials if trial.em >= reference - loss - 1e-12]
    if not kept:
        return max(trials, key=lambda trial: trial.em)
    other = "token_forwards" if cost == "nfe" else "nfe"
    return min(kept, key=lambda trial: (getattr(trial, cost), getattr(trial, other)))


def lsp_settings(params: CalibrationParams, windows: Sequence[int]) -> Iterator[LspParams]:
    """The grid of the prefix scheduler."""
    for alpha, beta, tau, window in itertools.product(params.alpha, params.beta, params.tau_min, windows):
        if beta >= alpha:
            yield LspParams(alpha=alpha, beta=beta, tau_min=tau, window=window, stability=params.stability)


def threshold_settings(params: CalibrationParams) -> Iterator[ThresholdParams]:
    """The grid of the threshold scheduler."""
    for threshold, block, cache in itertools.product(params.threshold, params.block, params.caches):
        if not (cache == "dual" and block is None):  # no suffix behind a block of everything: the same as `prefix`
            yield ThresholdParams(threshold=threshold, block=block, cache=cache)


def tune(
    denoiser: Denoiser,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    specials: Specials,
    params: CalibrationParams,
    *,
    together: bool = False,
) -> tuple[float, LspParams, ThresholdParams, list[Trial]]:
    """Exact match of the reference, the two settings that were chosen, and every trial; `together` as in `decode_all`."""

    def tried(scheduler: Scheduler) -> Trial:
        decoded = decode_all(denoiser, prompts, answers, specials, scheduler, params.device, together=together)
        found = table_of(decoded, answers, specials.eos_id)
        return Trial(scheduler, float(found.em.mean()), float(found.nfe.mean()), float(found.token_forwards.mean()))

    reference = tried(QuotaParams()).em
    trials = [tried(setting) for setting in lsp_settings(params, params.window[-1:])]
    best = cheapest(trials, reference, params.loss, params.cost)
    others = [best.scheduler.model_copy(update={"window": window}) for window in params.window[:-1]]
    trials += [tried(setting) for setting in others]
    lsp = cheapest(trials, reference, params.loss, params.cost).scheduler
    plain = [tried(setting) for setting in threshold_settings(params)]
    threshold = cheapest(plain, reference, params.loss, params.cost).scheduler
    assert isinstance(lsp, LspParams)
    assert isinstance(threshold, ThresholdParams)
    return reference, lsp, threshold, trials + plain


@dataclass(frozen=True)
class Work:
    """One model whose schedulers are tuned."""

    seed: int
    params: CalibrationParams
    programs: Path
    model: Path


def tune_model(work: Work) -> tuple[float, LspParams, ThresholdParams, list[Trial]]:
    """Tune on one model's calibration programmes."""
    from tasks.masked_diffusion.model import load_model

    prompts, answers = read_programs(work.programs, work.seed, "calibration", work.params.programs)
    return tune(load_model(work.model).to(work.params.device), prompts, answers, SPECIALS, work.params, together=True)


def calibrate(params: CalibrationParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `chosen.json`, `trials.parquet`; the chosen values, and what they gave on the calibration programmes."""
    import pandas as pd

    from tasks.common.formats import write_json, write_parquet

    work = [Work(seed, params, inputs["prepare"], inputs.file("warmstart", f"model-{seed}")) for seed in range(params.seeds)]
    found = list(log.progress(map_parallel(tune_model, work), total=len(work), desc="models"))
    chosen = {
        str(w.seed): {"lsp": lsp.model_dump(), "threshold": thr.model_dump()} for w, (_, lsp, thr, _) in zip(work, found, strict=True)
    }
    write_json(out / "chosen.json", chosen)
    rows = [
        {
            "seed": w.seed,
            "scheduler": json.dumps(t.scheduler.model_dump(), sort_keys=True),
            "em": t.em,
            "nfe": t.nfe,
            "token_forwards": t.token_forwards,
        }
        for w, (_, _, _, trials) in zip(work, found, strict=True)
        for t in trials
    ]
    write_parquet(out / "trials.parquet", pd.DataFrame(rows))
    metrics = summarise("calibration.em_reference.trace", [reference for reference, *_ in found])
    for name in ("alpha", "beta", "tau_min", "window"):
        metrics |= summarise(f"calibration.{name}.trace", [float(getattr(lsp, name)) for _, lsp, _, _ in found])
    metrics |= summarise("calibration.threshold.trace", [thr.threshold for _, _, thr, _ in found])
    return metrics


def read_chosen(folder: Path, seed: int) -> dict[str, Scheduler]:
    """The tuned arms of one model, `lsp_calibrated` and `threshold_calibrated`."""
    given = json.loads((folder / "chosen.json").read_text())[str(seed)]
    reader: TypeAdapter[Scheduler] = TypeAdapter(Scheduler)
    return {f"{name}_calibrated": reader.validate_python(values) for name, values in given.items()}
