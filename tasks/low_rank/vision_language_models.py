"""Nodes of the gpu profile: compress a real vision-language model and ask it multiple-choice questions about images.

The same calibration, factorisation and fine-tuning as for the language model, on prompts with images and labels on the answer alone, one
sample per batch. Accuracy is compared on the same questions for every arm; intervals are over questions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.statistics import paired, summarise
from tasks.low_rank.attention import attention_blocks
from tasks.low_rank.checkpoints import load_factors, save_factors
from tasks.low_rank.comparison import Cell, closed_form
from tasks.low_rank.layers import merged
from tasks.low_rank.methods import ModelFactors, cache_ratio, importance_bases, parameter_ratio
from tasks.low_rank.selection import tune_model
from tasks.low_rank.statistics import calibrate, load_statistics, save_statistics
from tasks.low_rank.train import Arm, arm_weights, start_of
from tasks.vision_language.multiple_choice import READERS, Asker, Question, hits

STATISTICS = "statistics.safetensors"
QuestionSet = Literal["scienceqa", "seed_bench"]
HUB: dict[QuestionSet, str] = {"scienceqa": "derek-thomas/ScienceQA", "seed_bench": "lmms-lab/SEED-Bench"}


class ModelParams(Params):
    """Which model, from where.

    Attributes:
        model: id on the hub or a folder.
        data: folder or id of the data set, by reader.
        dtype: of the model.
        device: torch device.
    """

    model: str = "llava-hf/llava-1.5-7b-hf"
    data: dict[QuestionSet, str] = Field(default_factory=lambda: dict(HUB))
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    device: str = "cuda"


class CompressParams(ModelParams):
    """How it is compressed.

    Attributes:
        samples: calibration samples with an image, of ScienceQA's training split.
        arms: fine-tuned arms; the last iterate is kept, as in the paper.
    """

    samples: int = Field(256, ge=1)
    arms: dict[str, Arm] = Field(
        default_factory=lambda: {
            f"wsvd_r{r}": Arm(projections=("q", "k", "v"), kept=r / 100, allocation="global", rate=1e-4) for r in (50, 60, 70, 80, 90)
        }
    )


class AskParams(ModelParams):
    """What it is asked.

    Attributes:
        cells: closed-form methods.
        tuned: fine-tuned arms.
        questions: of each set, 0 for all.
    """

    cells: dict[str, Cell] = Field(default_factory=lambda: {"head_white": Cell(method="head_white", allocation="global")})
    tuned: tuple[str, ...] = ("wsvd_r50",)
    questions: int = Field(0, ge=0)


def load_vision_language(params: ModelParams) -> tuple[Any, Asker]:
    """The model, in evaluation mode without gradients, and what turns questions into its inputs."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    kind = getattr(torch, params.dtype)
    model: Any = AutoModelForImageTextToText.from_pretrained(params.model, dtype=kind)
    processor = AutoProcessor.from_pretrained(params.model)  # type: ignore[no-untyped-call]
    return model.to(params.device).eval().requires_grad_(False), Asker(processor, params.device, kind)


def questions_of(reader: str, source: str, split: str, count: int = 0) -> list[Question]:
    """The first `count` questions of a split, all with 0.

    Raises:
        ValueError: if there is none.
    """
    found = list(itertools.islice(READERS[reader](source, split), count or None))
    if not found:
        raise ValueError(f"{source} holds no question with an image in its {split} split")
    return found


def train(params: CompressParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: statistics of the model on ScienceQA's training questions, and the factors of every arm.

    Metrics: `fit_<arm>.{objective,start}.<model>`, normalised weighted errors after and before fine-tuning.
    """
    model, asker = load_vision_language(params)
    samples = [asker.sample(q) for q in questions_of("scienceqa", params.data["scienceqa"], "train", params.samples)]

    def watch(items: Iterable[Any]) -> Iterable[Any]:
        return log.progress(items, total=len(samples), desc="calibration")

    statistics = calibrate(model, samples, importance_bases, watch=watch)
    save_statistics(out / STATISTICS, statistics)
    blocks = attention_blocks(model)
    metrics: Metrics = {}
    for name, arm in log.progress(params.arms.items(), desc="arms"):
        start = start_of(arm, blocks, statistics, {})
        tuned = tune_model(
            blocks, start, partial(arm_weights, arm, statistics, 0), steps=arm.steps, rate=arm.rate, keep_every=arm.steps or 1
        )
        save_factors(out / f"{name}.safetensors", tuned.factors(arm.steps, best=True), torch.bfloat16)
        objective = tuned.objective()
        metrics |= {f"fit_{name}.start.{short(params.model)}": float(objective[0])}
        metrics |= {f"fit_{name}.objective.{short(params.model)}": float(objective[-1])}
    return metrics


def evaluate(params: AskParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<arm>.accuracy.<set>_<model>` over questions, differences to the dense model, and ratios of every arm."""
    import pandas as pd

    model, asker = load_vision_language(params)
    blocks = attention_blocks(model)
    (folder,) = inputs.values()
    statistics = load_statistics(folder / STATISTICS)
    for known in statistics:  # closed forms are made where the weights are
        known.second_moment = known.second_moment.to(params.device)
        known.abs_mean = known.abs_mean.to(params.device)
        known.fisher = {p: value.to(params.device) for p, value in known.fisher.items()}
    sets = {name: questions_of(name, source, "test", params.questions) for name, source in params.data.items()}
    found: dict[tuple[str, str], np.ndarray] = {("dense", name): hits(model, asker, asked) for name, asked in sets.items()}
    ratios: Metrics = {}
    arms: Mapping[str, ModelFactors] = {name: load_factors(folder / f"{name}.safetensors") for name in params.tuned}
    for arm, factors in log.progress(itertools.chain(closed_form(params.cells, blocks, statistics), arms.items()), desc="arms"):
        ratios |= {f"{arm}.param_ratio.{short(params.model)}": parameter_ratio(factors, blocks)}
        ratios |= {f"{arm}.cache_ratio.{short(params.model)}": cache_ratio(factors, blocks)}
        with merged(model, factors):
            for name, asked in sets.items():
                found[arm, name] = hits(model, asker, asked)
    write_parquet(out / "hits.parquet", pd.DataFrame([{"arm": a, "set": s, "right": list(v)} for (a, s), v in found.items()]))
    metrics = dict(ratios)
    for (arm, asked_set), right in found.items():
        data = f"{asked_set}_{short(params.model)}"
        metrics |= summarise(f"{arm}.accuracy.{data}", right)
        if arm != "dense":
            metrics |= paired(f"{arm}.accuracy.{data}-dense.accuracy.{data}", right, found["dense", asked_set])
    return metrics


def short(model: str) -> str:
    """A model's name as part of a metric's: letters and digits of what follows the last slash.

    >>> short("llava-hf/llava-1.5-7b-hf")
    'llava157bhf'
    """
    return "".join(c for c in model.rstrip("/").rsplit("/", 1)[-1].lower() if c.isalnum())
