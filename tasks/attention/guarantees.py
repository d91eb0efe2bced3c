"""Stage that asks on recorded queries, keys and values whether the bounds hold, what they cost, and which parts of the method matter.

Every prompt is a seed of its own: rows of a prompt share their keys and are not independent. No answer is generated here; all figures are
errors of single attention calls, on every few layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from pydantic import Field

from tasks.attention.arms import MATCHED, Arm, Tuned, calibrated_arms, matched_arm, vattention_arms
from tasks.attention.baselines import TopK, UniformSample
from tasks.attention.calibration import CONFIGS, HASHES
from tasks.attention.cells import Case, Errors, measure, noisy_scores, selections
from tasks.attention.guarantees_report import figures, metrics_of
from tasks.attention.hash_attention import load_hash_attention
from tasks.attention.models import ModelParams, source_of
from tasks.attention.predictors import ProductQuantised, SimHash
from tasks.attention.recording import record
from tasks.attention.vattention import Vattention, VAttentionConfig
from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.language_models.pretrained import load_model
from tasks.language_models.prompts import Prompt, read_prompts

if TYPE_CHECKING:
    from tasks.attention.interface import Predictor

LEVELS = (0.05, 0.1, 0.2)
EPSILONS = (0.05, 0.1, 0.2, 0.3, 0.5)
DELTAS = (0.05, 0.1, 0.2, 0.3, 0.5)
OUTPUT_EPSILONS = (0.1, 0.2, 0.4)
DELTA = 0.1
HEAVY_KEYS = 32
"""Heavy keys in the sweeps of epsilon and delta, with a base sample of 1 %."""


class SetParams(Params):
    """One set of prompts and how much of it is looked at.

    Attributes:
        every: every which layer.
        rows: the last rows of each prompt.
        full: all ablations, or only the sweep and the modes.
    """

    every: int = Field(3, ge=1)
    rows: int = Field(16, ge=1)
    full: bool = True


class GuaranteeParams(ModelParams):
    """What is measured.

    Attributes:
        sets: prompts' files, by name of the data in metrics.
        ends: sink and window, keys each.
        targets: calibrated densities at which all methods are compared.
    """

    sets: dict[str, SetParams] = Field({"short": SetParams(), "long": SetParams(every=6, rows=12, full=False)})
    ends: int = Field(16, ge=0)
    targets: tuple[str, ...] = ("05", "10", "20")


@dataclass(frozen=True)
class Work:
    """One prompt for one process."""

    model: str
    trained: Path
    prompts: Path
    data: str
    number: int
    params: GuaranteeParams


def evaluate(params: GuaranteeParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: metrics `<arm>.<quantity>.<cell>` over prompts, and figures."""
    source = source_of(params, inputs)
    todo = []
    for data in params.sets:
        path = inputs.file("prepare", f"{data}.parquet")
        todo += [Work(source, inputs["train"], path, data, number, params) for number in range(len(read_prompts(path)))]
    todo.sort(key=lambda work: params.sets[work.data].full)  # the long prompts first: they take longest
    workers = 1 if params.device != "cpu" else None
    results = list(log.progress(map_parallel(run_prompt, todo, workers=workers), total=len(todo), desc="prompts"))
    frame = pd.DataFrame([row for rows, _ in results for row in rows])
    scatter = pd.DataFrame([row for _, points in results for row in points])
    write_parquet(out / "cells.parquet", frame)
    write_parquet(out / "rows.parquet", scatter)
    figures(frame, scatter, log)
    return metrics_of(frame)


@cache
def _opened(source: str, dtype: str, device: str, trained: Path) -> tuple[Any, Tuned, Any]:
    model, _ = load_model(source, dtype, device)
    return model, Tuned.read(trained / CONFIGS), load_hash_attention(trained / HASHES).to(device)


def run_prompt(work: Work) -> tuple[list[dict[str, Any]], list[dict[str, float]]]:
    """Rows (arm, cell and quantities) of a prompt, and single rows for the scatter plot."""
    params, chosen = work.params, work.params.sets[work.data]
    model, tuned, hashes = _opened(work.model, params.dtype, params.device, work.trained)
    prompt: Prompt = read_prompts(work.prompts)[work.number]
    layers = range(0, model.config.num_hidden_layers, chosen.every)
    recorded = record(model, prompt.context_ids(params.device), prompt.following_ids(params.device), layers)
    cases = [Case.of(r.rows(chosen.rows)) for r in recorded]
    del recorded
    bench = Bench(cases, prompt.seed, work.data, VAttentionConfig(sink=params.ends, window=params.ends))
    bench.sweeps()
    bench.modes()
    points: list[dict[str, float]] = []
    if chosen.full:
        bench.bounds()
        bench.ablations()
        bench.adaptivity()
        for target in params.targets:
            bench.methods(tuned, target, hashes)
        points = scatter_points(bench, tuned, params.targets)
    return bench.rows, points


class Bench:
    """Runs arms on one prompt's cases and keeps a row for each.

    Attributes:
        rows: one per arm and cell: seed, data, group of cells, arm, cell and quantities.
    """

    def __init__(self, cases: Sequence[Case], seed: int, data: str, base: VAttentionConfig) -> None:
        self.cases, self.seed, self.data, self.base = cases, seed, data, base
        self.rows: list[dict[str, Any]] = []

    def keep(self, group: str, arm: str, cell: str, errors: Errors, epsilon: float | None = None, **more: float) -> None:
        """Add a row; violations are counted where an epsilon is given."""
        counted = {} if epsilon is None else errors.violations(epsilon)
        place = {"seed": self.seed, "data": self.data, "group": group, "arm": arm, "cell": cell}
        self.rows.append({**place, **errors.summary(), **counted, **more})

    def config(self, **changes: Any) -> VAttentionConfig:
        """The base configuration with some fields changed, validated."""
        return VAttentionConfig(**{**self.base.model_dump(), **changes})

    def run(self, config: VAttentionConfig, predictor: Predictor | None = None) -> Errors:
        """Errors of vAttention."""
        return measure(self.cases, Vattention(config), self.seed, predictor)

    def bounds(self) -> None:
        """Violation of the denominator's bound for nine (epsilon, delta), with 5 % heavy keys and a base sample of 5 %."""
        fixed, heavy = self.run(self.config(adaptive=False)), self.run(self.config(base=0))
        for epsilon in LEVELS:
            for delta in LEVELS:
                cell = f"{named('e', epsilon)}_{named('d', delta)}"
                self.keep("bound", "vattention", cell, self.run(self.config(epsilon=epsilon, delta=delta)), epsilon)
                self.keep("bound", "base_only", cell, fixed, epsilon)
                self.keep("bound", "topk_only", cell, heavy, epsilon)

    def sweeps(self) -> None:
        """Error against epsilon, violation against delta, with few heavy keys and a base sample of 1 %."""
        few = {"heavy": HEAVY_KEYS, "base": 0.01}
        unadaptive = self.run(self.config(**few, adaptive=False))
        for epsilon in EPSILONS:
            cell = f"{named('e', epsilon)}_{self.data}"
            self.keep("epsilon", "sweep", cell, self.run(self.config(**few, epsilon=epsilon, delta=DELTA)), epsilon, asked=epsilon)
            self.keep(
                "epsilon", "sweep_heavy5", cell, self.run(self.config(base=0.01, epsilon=epsilon, delta=DELTA)), epsilon, asked=epsilon
            )
            self.keep("epsilon", "unadaptive", cell, unadaptive, epsilon, asked=epsilon)
        for delta in DELTAS:
            cell = f"{named('d', delta)}_{self.data}"
            for arm, size in (("small_base", few), ("large_base", {"heavy": 0.05, "base": 0.05})):
                self.keep("delta", arm, cell, self.run(self.config(**size, epsilon=0.1, delta=delta)), 0.1, asked=delta)

    def modes(self) -> None:
        """What a bound on the numerator or on the output costs beside one on the denominator."""
        for epsilon in OUTPUT_EPSILONS:
            for mode in ("denominator", "numerator", "sdpa"):
                cell = f"{named('e', epsilon)}_{self.data}"
                self.keep("mode", mode, cell, self.run(self.config(mode=mode, epsilon=epsilon, delta=DELTA)), epsilon)
            self.keep("mode", "no_sample", f"{named('e', epsilon)}_{self.data}", self.run(self.config(base=0)), epsilon)

    def ablations(self) -> None:
        """One change at a time, from 5 % heavy keys, a base sample of 1 %, epsilon = delta = 0.1."""
        plain = {"base": 0.01, "epsilon": 0.1, "delta": 0.1}
        changes: dict[str, dict[str, Any]] = {
            "plain": {},
            "base_5": {"base": 0.05},
            "base_10": {"base": 0.1},
            "fresh": {"nested": False},
            "replacement": {"replacement": True},
            "one_sided": {"z": "one_sided"},
            "fpc": {"fpc": True},
        }
        for name, change in changes.items():
            self.keep("ablation", name, self.data, self.run(self.config(**{**plain, **change})), 0.1)
        for level in (0.5, 1.0, 2.0):
            errors = self.run(self.config(**plain), noisy_scores(level, self.seed))
            self.keep("ablation", named("noise_", level), self.data, errors, 0.1)

    def adaptivity(self) -> None:
        """Rank correlation over heads of the share of the residual that is sampled with the entropy of the residual."""
        import torch
        from scipy.stats import spearmanr

        shares, entropies, spreads = [], [], []
        for case, chosen in selections(self.cases, self.config(heavy=HEAVY_KEYS, base=0.01, epsilon=0.05, delta=DELTA), self.seed):
            e = case.exact.e.masked_fill(chosen.fixed | ~case.valid, 0.0)
            p = e / e.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
            shares.append((chosen.b / chosen.n_s.clamp(min=1)).mean(-1).flatten())
            entropies.append((-torch.xlogy(p, p).sum(-1) / chosen.n_s.clamp(min=2).log()).mean(-1).flatten())
            mean = e.sum(-1) / chosen.n_s.clamp(min=1)
            deviation = (e.square().sum(-1) / chosen.n_s.clamp(min=1) - mean.square()).clamp(min=0).sqrt()
            spreads.append((deviation / mean.clamp(min=torch.finfo(torch.float32).tiny)).mean(-1).flatten())
        share, entropy, spread = (torch.cat(x).cpu().numpy() for x in (shares, entropies, spreads))
        found = {"spearman_entropy": spearmanr(share, entropy).statistic, "spearman_spread": spearmanr(share, spread).statistic}
        self.rows.append({"seed": self.seed, "data": self.data, "group": "budget", "arm": "budget", "cell": self.data, **found})

    def methods(self, tuned: Tuned, target: str, hashes: Predictor) -> None:
        """All methods at one calibrated density."""
        cell = f"p{target}"
        ours = {name: self._arm(arm, name, cell) for name, arm in vattention_arms(tuned, target, hashes).items()}
        for name in MATCHED:
            like = ours["vattention_hash" if name == "hashattention" else "vattention"]
            density = float(like.density.mean())
            self._arm(matched_arm(name, density, tuned.ends, hashes, tuned.heavy_share[target]), name, cell)
        for name, arm in calibrated_arms(tuned, target, self.seed).items():
            self._arm(arm, name, cell)
        if target == "10":
            learned = Vattention(tuned.hashattention[target])
            for name, predictor in (("vattention_simhash", SimHash()), ("vattention_pq", ProductQuantised(iterations=3))):
                self._arm(Arm(learned, predictor), name, cell)

    def _arm(self, arm: Arm, name: str, cell: str) -> Errors:
        errors = measure(self.cases, arm.method, self.seed, arm.predictor)
        self.keep("method", name, cell, errors)
        return errors


def scatter_points(bench: Bench, tuned: Tuned, targets: Sequence[str], count: int = 150) -> list[dict[str, float]]:
    """Entropy of a row's softmax and the error of three arms at equal density, for some rows of a prompt."""
    import torch

    target = "10" if "10" in targets else targets[0]
    ours = measure(bench.cases, Vattention(tuned.oracle[target]), bench.seed)
    density = float(ours.density.mean())
    errors = {
        "vattention": ours,
        "oracle_topk": measure(bench.cases, TopK(density, tuned.ends, tuned.ends), bench.seed),
        "random": measure(bench.cases, UniformSample(density, tuned.ends, tuned.ends), bench.seed),
    }
    entropy = torch.cat([case.exact.entropy().flatten() for case in bench.cases])
    picked = torch.randperm(len(entropy), generator=torch.Generator().manual_seed(bench.seed))[:count]
    flat = {name: e.err.flatten()[picked.to(e.err.device)].tolist() for name, e in errors.items()}
    return [
        {"entropy_nats": h, **{name: flat[name][i] for name in flat}} for i, h in enumerate(entropy[picked.to(entropy.device)].tolist())
    ]


def named(letter: str, value: float) -> str:
    """`e05` for 0.05, `noise_200` for 2.0: hundredths."""
    return f"{letter}{round(100 * value):02d}"


def cells() -> Iterator[str]:
    """Names of the nine cells of the bound."""
    for epsilon in LEVELS:
        for delta in LEVELS:
            yield f"{named('e', epsilon)}_{named('d', delta)}"
