"""LLaDA-8B and Dream-7B on benchmarks with the same schedulers: tuned on problems of their own, compared on the rest.

There is one model of a kind, and decoding is deterministic. Intervals are therefore over `parts`: independent shares of the
problems, that is over problems alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from pydantic import Field

from tasks.common.assets import AssetMissing
from tasks.common.formats import write_json
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.statistics import paired, summarise
from tasks.masked_diffusion.arms import standard_arms
from tasks.masked_diffusion.benchmarks import Problem, is_right, read_problems
from tasks.masked_diffusion.decoding import Decoded, Denoiser, Specials
from tasks.masked_diffusion.delimiters import PROSE
from tasks.masked_diffusion.pieces import Text, load_text
from tasks.masked_diffusion.prefix_schedule import LspParams
from tasks.masked_diffusion.pretrained import KINDS, kind_of, load_denoiser
from tasks.masked_diffusion.scheduler_calibration import (
    CalibrationParams,
    Trial,
    cheapest,
    lsp_settings,
    read_chosen,
    threshold_settings,
)
from tasks.masked_diffusion.schedulers import QuotaParams, Scheduler, decode
from tasks.masked_diffusion.scoring import COUNTED

PUBLISHED = {"llada": "GSAI-ML/LLaDA-8B-Instruct", "dream": "Dream-org/Dream-v0-Instruct-7B"}
PAIRED = (
    *(("lsp", other) for other in ("quota", "quota_half", "threshold", "threshold_block", "threshold_prefix", "threshold_dual")),
    *((other, "lsp") for other in ("literal", "no_snap", "no_cache", "scattered", "fixed_tau", "no_stability", "lsp_wide")),
    *((other, "quota") for other in ("literal", "scattered", "quota_half")),
    ("lsp_calibrated", "threshold_calibrated"),
    ("lsp_calibrated", "quota"),
    ("scattered", "threshold"),
    ("literal", "quota_half"),
)


class RealParams(Params):
    """What both nodes need.

    Attributes:
        model: `llada` or `dream`, another name on the Hugging Face hub, or a folder.
        name: of the model in metrics.
        length: answer tokens N.
        block: tokens per block of block-wise baselines.
        delimiters: sets of `tasks.masked_diffusion.delimiters`.
        chat: prompts are a user's turn.
        dtype: of the weights.
        device: torch device.
    """

    model: str = "llada"
    name: str = "llada"
    length: int = Field(256, ge=1)
    block: int = Field(32, ge=1)
    delimiters: tuple[str, ...] = PROSE
    chat: bool = True
    dtype: str = "bfloat16"
    device: str = "cuda"


class RealCalibrationParams(RealParams):
    """Parameters of `calibrate`.

    Attributes:
        problems: of GSM8K, on which schedulers are tuned.
        grid: settings, loss and cost.
    """

    problems: int = Field(64, ge=1)
    grid: CalibrationParams = CalibrationParams(seeds=1, block=(32, None), window=(8,))


class RealCompareParams(RealParams):
    """Parameters of `evaluate`.

    Attributes:
        base: the scheduler; ablations turn one switch of it.
        arms: which are decoded; None: all.
        problems: per benchmark; None: all.
        parts: shares of the problems over which intervals are taken.
        run_code: run generated code; without it code benchmarks report calls and work, but no score.
    """

    base: LspParams = LspParams()
    arms: tuple[str, ...] | None = None
    problems: int | None = Field(None, ge=1)
    parts: int = Field(5, ge=2)
    run_code: bool = False


def folder_of(model: str) -> Path:
    """The folder of a model: itself, or a snapshot of the hub.

    Raises:
        AssetMissing: if it is neither here nor to be had.
    """
    if Path(model).expanduser().is_dir():
        return Path(model).expanduser()
    from huggingface_hub import snapshot_download

    name = PUBLISHED.get(model, model)
    patterns = ["*.json", "*.safetensors", "merges.txt", "*.model"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:
        raise AssetMissing(name, f"hf download {name}", f"cannot be had ({type(error).__name__})") from error


@dataclass(frozen=True)
class Loaded:
    """A model, its text, and its special tokens."""

    denoiser: Denoiser
    text: Text
    specials: Specials


def load_any(folder: Path, dtype: str = "bfloat16", device: str = "cpu", chat: bool = True, delimiters: Sequence[str] = PROSE) -> Loaded:
    """Load a folder of LLaDA or Dream, or one that this project trained.

    Raises:
        FileNotFoundError: if something is missing in the folder.
        ValueError: for another kind of model, or an unknown set of delimiters.
    """
    kind = kind_of(folder)
    text = load_text(folder, chat)
    if kind in KINDS:
        large = load_denoiser(folder, dtype, device)
        return Loaded(large, text, Specials(large.config.mask_id, large.config.eos_id, text.delimiters(delimiters)))
    from tasks.masked_diffusion.model import KIND, load_model

    if kind != KIND:
        raise ValueError(f"{folder} holds a model of type {kind!r}; known: {', '.join(sorted([*KINDS, KIND]))}")
    small = load_model(folder).to(device)
    return Loaded(small, text, Specials(small.config.mask_id, small.config.eos_id, text.delimiters(delimiters)))


def answer_problem(loaded: Loaded, problem: Problem, params: RealParams, scheduler: Scheduler) -> tuple[Decoded, str]:
    """One answer and its text."""
    found = decode(loaded.denoiser, loaded.text.encode(problem.prompt), params.length, loaded.specials, scheduler, device=params.device)
    return found, loaded.text.decode(found.tokens)


def calibrate(params: RealCalibrationParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `chosen.json` as the toy's calibration writes it, for one model; tuned on problems of GSM8K."""
    problems = read_problems(inputs["prepare-benchmarks"], "calibration")[: params.problems]
    loaded = load_any(folder_of(params.model), params.dtype, params.device, params.chat, params.delimiters)

    def tried(scheduler: Scheduler) -> Trial:
        found = [answer_problem(loaded, problem, params, scheduler) for problem in problems]
        right = [bool(is_right(problem, text)) for problem, (_, text) in zip(problems, found, strict=True)]
        counters = [one.counters for one, _ in found]
        return Trial(
            scheduler,
            float(np.mean(right)),
            float(np.mean([c.nfe for c in counters])),
            float(np.mean([c.token_forwards for c in counters])),
        )

    grid = params.grid
    reference = tried(QuotaParams()).em
    families: dict[str, list[Scheduler]] = {"lsp": list(lsp_settings(grid, grid.window)), "threshold": list(threshold_settings(grid))}
    chosen, metrics = {}, {f"calibration.em_reference.{params.name}": reference}
    for family, settings in families.items():
        trials = [tried(setting) for setting in log.progress(settings, desc=family)]
        best = cheapest(trials, reference, grid.loss, grid.cost)
        chosen[family] = best.scheduler.model_dump()
        metrics |= {
            f"{family}_calibrated.calibration_em.{params.name}": best.em,
            f"{family}_calibrated.calibration_nfe.{params.name}": best.nfe,
        }
    write_json(out / "chosen.json", {"0": chosen})
    return metrics


def evaluate(params: RealCompareParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<arm>.<metric>.<model>_<benchmark>` over shares of the problems; `answers.parquet`; tokens per second as timings."""
    import pandas as pd

    from tasks.common.formats import write_parquet

    problems = _first_of_each(read_problems(inputs["prepare-benchmarks"], "test"), params.problems)
    loaded = load_any(folder_of(params.model), params.dtype, params.device, params.chat, params.delimiters)
    arms = {**standard_arms(params.base, params.block), **read_chosen(inputs[f"train-{params.name}"], 0)}
    names = list(params.arms) if params.arms is not None else list(arms)
    if unknown := set(names) - set(arms):
        raise ValueError(f"unknown arm {sorted(unknown)[0]!r}; known: {', '.join(arms)}")
    rows, speeds = [], {}
    for name in log.progress(names, desc="arms"):
        started, tokens = time.perf_counter(), 0
        for problem in problems:
            found, text = answer_problem(loaded, problem, params, arms[name])
            tokens += len(found.tokens)
            counters = asdict(found.counters)
            counters["runs"] = counters.pop("contiguous_runs")
            right = is_right(problem, text, params.run_code)
            score = np.nan if right is None else float(right)
            rows.append({"arm": name, "benchmark": problem.benchmark, "name": problem.name, "text": text, "em": score, **counters})
        speeds[f"{name}_tokens_per_s"] = tokens / (time.perf_counter() - started)
    log.timing(**speeds)
    table = pd.DataFrame(rows)
    write_parquet(out / "answers.parquet", table)
    return metrics_of(table, names, params.name, params.parts)


def metrics_of(table: object, names: Sequence[str], model: str, parts: int) -> Metrics:
    """Means with intervals over `parts` shares of the problems, and paired differences; scores that were not judged are left out.

    Raises:
        ValueError: if a benchmark has fewer problems than parts.
    """
    import pandas as pd

    assert isinstance(table, pd.DataFrame)
    metrics: Metrics = {}
    for benchmark, rows in table.groupby("benchmark", sort=False):
        shares: dict[str, Mapping[str, list[float]]] = {}
        for name in names:
            own = rows[rows.arm == name].reset_index(drop=True)
            if len(own) < parts:
                raise ValueError(f"{benchmark} has {len(own)} problems, fewer than the {parts} parts; lower parts")
            share = np.arange(len(own)) % parts
            known = [q for q in ("em", *COUNTED) if own[q].notna().all()]
            shares[name] = {q: [float(own[q][share == part].mean()) for part in range(parts)] for q in known}
            for quantity, values in shares[name].items():
                metrics |= summarise(f"{name}.{quantity}.{model}_{benchmark}", values)
        for a, b in PAIRED:
            for quantity in ("em", "nfe", "token_forwards", "flip_rate"):
                if a in shares and b in shares and quantity in shares[a]:
                    difference = f"{a}.{quantity}.{model}_{benchmark}-{b}.{quantity}.{model}_{benchmark}"
                    metrics |= paired(difference, shares[a][quantity], shares[b][quantity])
    return metrics


def _first_of_each(problems: Sequence[Problem], count: int | None) -> list[Problem]:
    seen: dict[str, int] = {}
    kept = []
    for problem in problems:
        seen[problem.benchmark] = seen.get(problem.benchmark, 0) + 1
        if count is None or seen[problem.benchmark] <= count:
            kept.append(problem)
    return kept
