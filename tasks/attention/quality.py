"""Stage that runs the model with every arm: answers, likelihood, divergence from dense attention, and local errors.

Setup B of the paper's protocol: the context is read densely; question and answer see sparse attention in all layers. They are given to the
model in one call, each token a row with a selection of its own, so that greedy exact match, likelihood and divergence come from
one pass. vAttention goes first, and arms with a fixed budget then read as much as it did on the same prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pydantic import Field

from tasks.attention.arms import Arm, Tuned, calibrated_arms, matched_arm, vattention_arms
from tasks.attention.baselines import Dense
from tasks.attention.calibration import CONFIGS, HASHES
from tasks.attention.cells import quantile
from tasks.attention.errors import Exact, row_errors
from tasks.attention.hash_attention import load_hash_attention
from tasks.attention.models import ModelParams, end_tokens, source_of
from tasks.attention.quality_report import figures, metrics_of
from tasks.attention.registration import Observed, sparse_attention
from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics
from tasks.common.parallel import map_parallel
from tasks.language_models.answers import score_answer
from tasks.language_models.cache import KeyValueCache, prefill
from tasks.language_models.decoding import decode
from tasks.language_models.pretrained import load_model
from tasks.language_models.prompts import Prompt, read_prompts
from tasks.language_models.scoring import forced_score, kl_to_reference

if TYPE_CHECKING:
    from torch import Tensor

MATCHED_TO = {
    "sink_window": "vattention",
    "oracle_topk": "vattention",
    "random": "vattention",
    "hybrid_fixed": "vattention",
    "hashattention": "vattention_hash",
}
"""Arms with a fixed budget, and whose density they take."""


class QualityParams(ModelParams):
    """What is evaluated.

    Attributes:
        data: the set of prompts, which is also the last part of the metrics' names.
        trained: the need that holds what was calibrated on this model.
        target: which of the calibrated densities.
        every: local errors are measured in every which layer.
        accuracy_tasks: tasks whose exact match counts; the model is too weak for the others.
        new_tokens: decode answers of this length and score their text; 0 to score the expected answer token by token.
        temperature: of decoding.
        samples: answers decoded per prompt.
        extra: also run MagicPIG and oracle top-p.
    """

    data: str = "quality"
    trained: str = "train"
    target: str = "10"
    every: int = Field(3, ge=1)
    accuracy_tasks: tuple[str, ...] = ("niah_single", "niah_multikey_4")
    new_tokens: int = Field(0, ge=0)
    temperature: float = Field(0.0, ge=0)
    samples: int = Field(1, ge=1)
    extra: bool = True


@dataclass(frozen=True)
class Work:
    """One seed's prompts for one process."""

    model: str
    trained: Path
    prompts: Path
    seed: int
    params: QualityParams


@dataclass
class Watch:
    """Collects errors and densities of a run, layer by layer."""

    every: int
    density: dict[int, Tensor] = field(default_factory=dict)
    err: list[Tensor] = field(default_factory=list)
    derr: list[Tensor] = field(default_factory=list)

    def __call__(self, seen: Observed) -> None:
        """Take note of one layer's call."""
        counts = seen.valid.sum(-1).clamp(min=1)
        self.density[seen.layer] = ((seen.weights > 0).sum(-1) / counts).mean(-1)[0]  # (H,)
        if seen.layer % self.every == 0:
            errors = row_errors(Exact.of(seen.logits, seen.valid, seen.values), seen.weights, seen.values, seen.output)
            self.err.append(errors.err.flatten())
            self.derr.append(errors.derr.flatten())

    def summary(self) -> dict[str, float]:
        """Means over layers, heads and rows."""
        import torch

        err, derr = torch.cat(self.err), torch.cat(self.derr)
        return {
            "density": float(torch.stack(list(self.density.values())).mean()),
            "err_mean": float(err.mean()),
            "err_q95": quantile(err, 0.95),
            "derr_mean": float(derr.abs().mean()),
            "dbias": float(derr.mean()),
        }

    def heads(self) -> list[list[float]]:
        """Density by layer and head."""
        return [[round(float(x), 5) for x in self.density[layer]] for layer in sorted(self.density)]


def evaluate(params: QualityParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: every arm on every prompt; metrics `<arm>.<quantity>.<data>` and what the claims compare, over seeds."""
    source = source_of(params, inputs)
    path = inputs.file("prepare", f"{params.data}.parquet")
    seeds = sorted({p.seed for p in read_prompts(path)})
    todo = [Work(source, inputs[params.trained], path, seed, params) for seed in seeds]
    workers = 1 if params.device != "cpu" else None
    results = list(log.progress(map_parallel(run_seed, todo, workers=workers), total=len(todo), desc="seeds"))
    frame = pd.DataFrame([row for rows, _ in results for row in rows])
    budgets = np.mean([heads for _, maps in results for heads in maps], axis=0)  # (layers, heads)
    write_parquet(out / "prompts.parquet", frame)
    write_parquet(out / "density_by_head.parquet", pd.DataFrame(budgets, columns=[f"head_{h}" for h in range(budgets.shape[1])]))
    figures(frame, budgets, params.accuracy_tasks, log)
    return metrics_of(frame, params.accuracy_tasks, params.data)


@cache
def _opened(source: str, dtype: str, device: str, trained: Path) -> tuple[Any, Any, Tuned, Any]:
    model, tokenizer = load_model(source, dtype, device)
    return model, tokenizer, Tuned.read(trained / CONFIGS), load_hash_attention(trained / HASHES).to(device)


def run_seed(work: Work) -> tuple[list[dict[str, Any]], list[list[list[float]]]]:
    """Rows (one per prompt and arm) and, per prompt, vAttention's density by layer and head."""
    prompts = [p for p in read_prompts(work.prompts) if p.seed == work.seed]
    rows, maps = [], []
    for number, prompt in enumerate(prompts):
        found, heads = run_prompt(work, prompt, number)
        rows += [{"seed": work.seed, "prompt": number, "task": prompt.task, "arm": arm, **values} for arm, values in found.items()]
        maps.append(heads)
    return rows, maps


def run_prompt(work: Work, prompt: Prompt, number: int) -> tuple[dict[str, dict[str, float]], list[list[float]]]:
    """What every arm did on a prompt, and vAttention's density by layer and head."""
    params = work.params
    model, tokenizer, tuned, hashes = _opened(work.model, params.dtype, params.device, work.trained)
    kept, _ = prefill(model, prompt.context_ids(params.device))
    following = prompt.following_ids(params.device)
    seed = 1000 * work.seed + number
    reader = _Reader(model, tokenizer, kept, prompt, following, params, seed)
    plain = _append_and_forget(kept, following)
    reference, found = None, {}
    watches: dict[str, Watch] = {}

    def run(name: str, arm: Arm) -> None:
        nonlocal reference
        logits, watch = reader.forced(arm)
        reference = logits if reference is None else reference
        found[name], watches[name] = {**watch.summary(), **reader.scores(arm, logits, reference)}, watch

    run("dense", Arm(Dense()))
    assert reference is not None
    found["dense_sdpa"] = {**found["dense"], "kl": kl_to_reference(reference, plain)}
    for name, arm in vattention_arms(tuned, params.target, hashes).items():
        run(name, arm)
    for name, like in MATCHED_TO.items():
        run(name, matched_arm(name, found[like]["density"], tuned.ends, hashes))
    if params.extra:
        for name, arm in calibrated_arms(tuned, params.target, seed).items():
            run(name, arm)
    return found, watches["vattention"].heads()


def _append_and_forget(kept: KeyValueCache, ids: Tensor) -> Tensor:
    length = kept.length
    logits = kept.append(ids, keep=0)[0]
    kept.crop(length)
    return logits


@dataclass(frozen=True)
class _Reader:
    """Runs arms on one prompt whose context is in the cache."""

    model: Any
    tokenizer: Any
    kept: KeyValueCache
    prompt: Prompt
    following: Tensor
    params: QualityParams
    seed: int

    def forced(self, arm: Arm) -> tuple[Tensor, Watch]:
        """Logits (R, V) of question and answer, and what attention did."""
        watch = Watch(self.params.every)
        with sparse_attention(self.model, method=arm.method, predictor=arm.predictor, seed=self.seed, observer=watch):
            return _append_and_forget(self.kept, self.following), watch

    def scores(self, arm: Arm, logits: Tensor, reference: Tensor) -> dict[str, float]:
        """`kl`, `nll` and `em`."""
        answer = self.prompt.answer_ids(self.params.device)
        forced = forced_score(logits[-len(answer) :], answer)
        em = float(forced.exact) if self.params.new_tokens == 0 else float(np.mean(self._decoded(arm)))
        return {"kl": kl_to_reference(reference, logits), "nll": forced.nats, "em": em}

    def _decoded(self, arm: Arm) -> Sequence[float]:
        import torch

        params, found = self.params, []
        asked = torch.tensor([self.prompt.question], device=params.device)
        for sample in range(params.samples):
            length = self.kept.length
            with sparse_attention(self.model, method=arm.method, predictor=arm.predictor, seed=self.seed):
                draws = torch.Generator(device=params.device).manual_seed(self.seed + sample)
                ends = end_tokens(self.model)
                tokens = decode(self.kept, asked, params.new_tokens, end=ends, temperature=params.temperature, generator=draws)
            self.kept.crop(length)
            found.append(score_answer(self.prompt.task, self.tokenizer.decode(tokens), self.prompt.references))
        return found
