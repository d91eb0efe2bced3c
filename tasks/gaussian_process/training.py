"""Training R deep GPs at once: minibatches, the bound's gradient clipped seed by seed, curves of test scores.

The descent itself is `tasks.training.loop.descend`. Every quantity is kept per seed; a seed's run depends on its own seed alone
(up to rounding in batched products).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from tasks.common.node import Params
from tasks.gaussian_process.deep_gp import Bound, DeepGP
from tasks.gaussian_process.prediction import judge
from tasks.gaussian_process.problem import Problem
from tasks.gaussian_process.streams import SeedStreams
from tasks.training.loop import Schedule, descend

LAST_STEPS = 30
"""The bound at the end is the mean over so many last steps."""

NOISE, ROWS, TEST = 0, 1, 2
"""Purposes of random streams: posterior draws, minibatches, draws for scores."""


class FitParams(Params):
    """How a model is trained and judged.

    Attributes:
        batch: rows per step.
        samples: S, posterior samples per step.
        rate: of Adam.
        clip: largest gradient norm of each seed.
        schedule: of the learning rate.
        curve: how often test scores are taken along the way.
        curve_draws: posterior draws for these.
        draws: posterior draws for the scores at the end; 0 leaves them out.
        objective: `elbo`, or `dsm`, the denoising-score loss of the published script in place of the divergence.
    """

    batch: int = Field(256, ge=1)
    samples: int = Field(2, ge=1)
    rate: float = Field(0.01, gt=0.0)
    clip: float = Field(10.0, gt=0.0)
    schedule: Schedule = "constant"
    curve: int = Field(20, ge=0)
    curve_draws: int = Field(32, ge=1)
    draws: int = Field(100, ge=0)
    objective: Literal["elbo", "dsm"] = "elbo"


@dataclass(frozen=True)
class Fit:
    """What training left.

    Attributes:
        elbo: bound per datum at every step, (steps, R), nats.
        parts: terms of the divergence and diagnostics over the last steps, each (R,), `<name>_<layer>`.
        curve: rows (step, name, values (R,)) of test scores along the way.
        scores: test scores at the end, each (R,).
    """

    elbo: np.ndarray
    parts: dict[str, np.ndarray]
    curve: list[tuple[int, str, np.ndarray]]
    scores: dict[str, np.ndarray]

    def final(self) -> dict[str, np.ndarray]:
        """Everything that is known at the end, each (R,)."""
        return {"elbo": self.elbo[-LAST_STEPS:].mean(0), **self.parts, **self.scores}


def train(
    model: DeepGP,
    problem: Problem,
    params: FitParams,
    steps: int,
    seeds: Sequence[int],
    variant: int = 0,
    parameters: Iterable[nn.Parameter] | None = None,
    watch: Callable[[int], Any] | None = None,
) -> Fit:
    """Maximise the bound (or the script's objective) of every replica.

    Args:
        model: is trained in place.
        problem: R splits.
        params: see `FitParams`.
        steps: of Adam, at least 1.
        seeds: one per replica.
        variant: another number gives other noise and minibatches for the same seeds.
        parameters: those to train; default all that require a gradient.
        watch: called with the number of steps done, for progress.

    Raises:
        ValueError: for seeds that do not match the problem.
        FloatingPointError: when a bound is not finite, naming step, seed and layer.
    """
    if len(seeds) != problem.x.shape[0]:
        raise ValueError(f"seeds must be one per replica, got {len(seeds)} for {problem.x.shape[0]}")
    device, dtype = str(problem.x.device), problem.x.dtype
    noise = SeedStreams(seeds, 10 * variant + NOISE, device, dtype)
    choice = SeedStreams(seeds, 10 * variant + ROWS, device, dtype)
    trained = [p for p in (model.parameters() if parameters is None else parameters) if p.requires_grad]
    every = torch.arange(len(seeds), device=device)[:, None]
    history: list[Tensor] = []
    last: list[Bound] = []
    curve: list[tuple[int, str, np.ndarray]] = []
    marks = {round(steps * i / params.curve) for i in range(1, params.curve + 1)} if params.curve else set()

    def scores(draws: int) -> dict[str, np.ndarray]:
        return judge(model, problem, draws, SeedStreams(seeds, 10 * variant + TEST, device, dtype))

    def loss(step: int) -> Tensor:
        rows = choice.rows(problem.rows, params.batch)
        bound = model.bound(problem.x[every, rows], problem.y[every, rows], problem.rows, params.samples, noise)
        value = bound.per_datum
        if not bool(torch.isfinite(value).all()):
            raise FloatingPointError(_blame(bound, step, seeds))
        history.append(value.detach())
        if step >= steps - LAST_STEPS:
            last.append(bound)
        return clipped(-value if params.objective == "elbo" else _script_loss(bound), trained, params.clip)

    def after(step: int, value: float) -> None:
        if step + 1 in marks:
            curve.extend((step + 1, name, values) for name, values in scores(params.curve_draws).items())
        if watch:
            watch(step + 1)

    descend(loss, trained, steps, rate=params.rate, schedule=params.schedule, after=after)
    elbo = torch.stack(history).cpu().double().numpy()
    return Fit(elbo, _parts(last), curve, scores(params.draws) if params.draws else {})


class _Known(torch.autograd.Function):
    """A value with gradients that are known already."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Any, ...]:
        return (None, None, *(outer[0] * g for g in ctx.gradients))


def clipped(losses: Tensor, parameters: Sequence[nn.Parameter], largest: float) -> Tensor:
    """Sum of the losses whose gradient is clipped replica by replica.

    A joint norm would let one seed's large gradient shrink the step of the others.

    Args:
        losses: one per replica, (R,).
        parameters: each (R, ...); a slice influences its own replica's loss only.
        largest: norm that a replica's gradient may have.

    >>> w = nn.Parameter(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    >>> clipped(0.5 * w.square().sum(1), [w], largest=1.0).backward()
    >>> [[round(v, 3) for v in row] for row in w.grad.tolist()]
    [[0.6, 0.8], [0.3, 0.4]]
    """
    gradients = torch.autograd.grad(losses.sum(), list(parameters), allow_unused=True)
    known = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
    norm = torch.stack([g.reshape(len(losses), -1).square().sum(1) for g in known]).sum(0).sqrt()
    share = (largest / norm.clamp_min(1e-12)).clamp_max(1.0)
    known = [g * share.reshape(-1, *[1] * (g.ndim - 1)) for g in known]
    value: Tensor = _Known.apply(losses.sum().detach(), known, *parameters)  # type: ignore[no-untyped-call]
    return value


def _script_loss(bound: Bound) -> Tensor:
    """Data term per datum plus the denoising-score losses, no divergence: the objective of the published script."""
    matching = [layer.matching for layer in bound.layers if layer.matching is not None]
    if len(matching) < len(bound.layers):
        raise ValueError("objective 'dsm' needs posteriors with a score-matching loss; use 'elbo'")
    return torch.stack(matching).sum(0) - bound.data / bound.rows


def _parts(bounds: Sequence[Bound]) -> dict[str, np.ndarray]:
    """Means over steps of every layer's terms and diagnostics, and of the whole divergence."""
    named: dict[str, list[Tensor]] = {}
    for bound in bounds:
        named.setdefault("kl", []).append(bound.kl)
        for number, layer in enumerate(bound.layers, 1):
            for name, value in (*layer.terms.items(), *layer.diagnostics.items()):
                named.setdefault(f"{name}_{number}", []).append(value)
    return {name: torch.stack(values).detach().cpu().double().numpy().mean(0) for name, values in named.items()}


def _blame(bound: Bound, step: int, seeds: Sequence[int]) -> str:
    seed = seeds[int((~torch.isfinite(bound.per_datum)).nonzero()[0])]
    bad = [str(n) for n, layer in enumerate(bound.layers, 1) if not bool(torch.isfinite(layer.kl).all())]
    where = f"divergence of layer {', '.join(bad)}" if bad else "data term"
    return f"the bound is not finite at step {step}, seed {seed}: {where}; lower the learning rate, or bound the corrections more tightly"
