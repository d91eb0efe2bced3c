"""Local fine-tuning of factors: min over A, B of |F^1/2 o (W - A B)|^2 for every head, F the diagonal Fisher information of W.

The objective is the second-order Taylor expansion of the loss with a diagonal Hessian (WSVD, eq. of section 3.2). With weights that differ
from element to element there is no closed form, so Adam descends from the truncated SVD; all heads of a layer are one batch. The objective
forgets how activations correlate, so a long descent can hurt the model while the objective falls: iterates are kept on the way, and whoever
has held-out text chooses among them (`tasks.low_rank.selection`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch

from tasks.training.loop import descend

Weighting = Literal["element", "row", "none", "first_order"]
DAMPING = 1e-3


@dataclass(frozen=True)
class Trajectory:
    """What a descent left behind.

    Attributes:
        objective: normalised weighted error of every group before each step and at the end, (steps + 1, groups).
        last: A (n, E, r) and B (n, r, H) at each kept step, as they were.
        best: the same, each group at its lowest objective among the kept steps so far, the start included.
    """

    objective: np.ndarray
    last: dict[int, tuple[torch.Tensor, torch.Tensor]]
    best: dict[int, tuple[torch.Tensor, torch.Tensor]]


def element_weights(
    fisher: torch.Tensor,
    weighting: Weighting = "element",
    abs_gradient: torch.Tensor | None = None,
    damping: float = DAMPING,
    clip_quantile: float | None = None,
) -> torch.Tensor:
    """Weights of the objective, positive, from the Fisher information of one projection.

    Args:
        fisher: E[g o g], (h, E, H).
        weighting: `element` as it is; `row` its mean over outputs; `none` ones; `first_order` E|g| in its place.
        abs_gradient: E|g|, (h, E, H), for `first_order`.
        damping: share of the mean that is added, so that no element is free.
        clip_quantile: larger values are cut to this quantile of the projection's, in (0, 1]; None keeps the heavy tail.

    Raises:
        ValueError: for an unknown weighting, a missing |g|, a quantile outside (0, 1], or Fisher information that is negative, not finite
            or zero everywhere.

    >>> import torch
    >>> element_weights(torch.tensor([[[1.0, 3.0]]]), "row", damping=0.0).tolist()
    [[[2.0, 2.0]]]
    """
    if weighting not in get_args(Weighting):
        raise ValueError(f"unknown weighting {weighting!r}; known: {', '.join(get_args(Weighting))}")
    if weighting == "first_order" and abs_gradient is None:
        raise ValueError("weighting 'first_order' needs abs_gradient, the mean of |g|")
    raw = abs_gradient if weighting == "first_order" and abs_gradient is not None else fisher
    if not (torch.isfinite(raw).all() and (raw >= 0).all()):
        raise ValueError("Fisher information must be finite and not negative; accumulate squares in float32")
    if weighting == "none":
        return torch.ones_like(raw)
    if not (raw > 0).any():
        raise ValueError("Fisher information is zero everywhere: no gradient reached this projection, or its squares underflowed")
    if clip_quantile is not None:
        if not 0 < clip_quantile <= 1:
            raise ValueError(f"clip_quantile must lie in (0, 1], got {clip_quantile}")
        # Not `torch.quantile`, which takes no more than 16 million numbers.
        raw = raw.clamp_max(float(raw.flatten().kthvalue(max(1, int(clip_quantile * raw.numel()))).values))
    raw = raw + damping * raw.mean().clamp_min(torch.finfo(raw.dtype).tiny)
    return raw.mean(dim=-1, keepdim=True).expand_as(raw).contiguous() if weighting == "row" else raw


def weighted_error(weights: torch.Tensor, W: torch.Tensor, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """sum(F o (W - A B)^2) / sum(F o W^2) over one group of heads: weights and W (n, E, H), A (n, E, r), B (n, r, H)."""
    return (weights * (W - A @ B).square()).sum() / (weights * W.square()).sum()


def fine_tune(
    weights: torch.Tensor,
    W: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    *,
    steps: int = 100,
    rate: float = 1e-4,
    groups: Sequence[int] | None = None,
    keep: Sequence[int] = (),
) -> Trajectory:
    """Descend on the weighted error of a batch of heads.

    Args:
        weights: F, (n, E, H), positive.
        W: the weights to approximate, (n, E, H).
        A: start, (n, E, r); columns that are zero together with B's rows (beyond a head's rank) stay zero.
        B: start, (n, r, H).
        steps: of Adam, with a constant rate; 0 only evaluates the start.
        rate: the paper's is 1e-4; a small model needs more.
        groups: heads per projection, in order; each group's error is normalised by its own weight. Default: one group.
        keep: steps at which factors are kept; the start and the end always are.

    Raises:
        ValueError: for shapes that do not fit, or a step to keep that is not reached.

    >>> import torch
    >>> w = torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(0))
    >>> u, s, v = torch.linalg.svd(w, full_matrices=False)
    >>> path = fine_tune(w.square() + 0.1, w, u[..., :2] * s[:, None, :2], v[:, :2], steps=50, rate=1e-2)
    >>> bool(path.objective[-1] < path.objective[0])
    True
    """
    sizes = list(groups) if groups is not None else [len(W)]
    _check(weights, W, A, B, sizes, steps, keep)
    kept = sorted({0, steps, *keep})
    totals = torch.stack([part.sum() for part in torch.split(weights * W.square(), sizes)])
    if not (totals > 0).all():
        raise ValueError("the weighted norm of a projection is zero; its Fisher information or its weight is zero everywhere")
    scaled = torch.cat([part / total for part, total in zip(torch.split(weights, sizes), totals, strict=True)])
    a, b = torch.nn.Parameter(A.clone()), torch.nn.Parameter(B.clone())
    objective = np.empty((steps + 1, len(sizes)))
    last: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    best: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def losses(step: int) -> torch.Tensor:
        errors: torch.Tensor = _HeadErrors.apply(a, b, W, scaled)  # type: ignore[no-untyped-call]  # (n,)
        parts = torch.stack([part.sum() for part in torch.split(errors, sizes)])
        objective[step] = parts.detach().cpu().double().numpy()
        if step in kept:
            last[step] = (a.detach().clone(), b.detach().clone())
            best[step] = _better(objective, step, last, best, sizes)
        return parts.sum()

    if steps:
        descend(losses, [a, b], steps, rate=rate)
    with torch.no_grad():
        losses(steps)
    return Trajectory(objective, last, best)


def split_groups(path: Trajectory, sizes: Sequence[int]) -> list[Trajectory]:
    """The trajectory of a batch of groups as one trajectory per group."""
    made: dict[tuple[int, int], torch.Tensor] = {}  # what `best` shares with `last` is copied once

    def part(side: torch.Tensor, group: int) -> torch.Tensor:
        key = id(side), group
        if key not in made:
            made[key] = torch.split(side, list(sizes))[group].clone()
        return made[key]

    def parts(kept: dict[int, tuple[torch.Tensor, torch.Tensor]], group: int) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        return {step: (part(a, group), part(b, group)) for step, (a, b) in kept.items()}

    return [Trajectory(path.objective[:, g : g + 1], parts(path.last, g), parts(path.best, g)) for g in range(len(sizes))]


class _HeadErrors(torch.autograd.Function):
    """sum F o (A B - W)^2 of each head, (n,): autograd would keep five arrays of the weight's size, this keeps one."""

    @staticmethod
    def forward(ctx: Any, A: torch.Tensor, B: torch.Tensor, W: torch.Tensor, F: torch.Tensor) -> torch.Tensor:
        residual = torch.baddbmm(W, A, B, beta=-1)
        weighted = F * residual
        ctx.save_for_backward(A, B, weighted)
        errors: torch.Tensor = torch.linalg.vecdot(weighted.flatten(1), residual.flatten(1))
        return errors

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        A, B, weighted = ctx.saved_tensors
        twice = 2 * gradient[:, None, None]
        return twice * (weighted @ B.transpose(1, 2)), twice * (A.transpose(1, 2) @ weighted), None, None


def _better(
    objective: np.ndarray,
    step: int,
    last: dict[int, tuple[torch.Tensor, torch.Tensor]],
    best: dict[int, tuple[torch.Tensor, torch.Tensor]],
    sizes: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each group's factors at the lowest objective among the kept steps until `step`."""
    steps = sorted(last)
    lowest = [steps[int(np.argmin([objective[s, g] for s in steps]))] for g in range(len(sizes))]
    if len(set(lowest)) == 1:
        return last[lowest[0]]  # no second copy
    parts = [(torch.split(last[s][0], list(sizes))[g], torch.split(last[s][1], list(sizes))[g]) for g, s in enumerate(lowest)]
    return torch.cat([a for a, _ in parts]), torch.cat([b for _, b in parts])


def _check(
    weights: torch.Tensor, W: torch.Tensor, A: torch.Tensor, B: torch.Tensor, sizes: Sequence[int], steps: int, keep: Sequence[int]
) -> None:
    n, hidden, dimension = W.shape
    if weights.shape != W.shape or A.shape[:2] != (n, hidden) or B.shape[0] != n or B.shape[2] != dimension or A.shape[2] != B.shape[1]:
        raise ValueError(
            f"shapes do not fit: weights {tuple(weights.shape)}, W {tuple(W.shape)}, A {tuple(A.shape)}, B {tuple(B.shape)}; "
            "expected (n, E, H), (n, E, H), (n, E, r), (n, r, H)"
        )
    if sum(sizes) != n:
        raise ValueError(f"groups of {sizes} heads do not add up to {n}")
    if steps < 0 or any(not 0 <= step <= steps for step in keep):
        raise ValueError(f"steps to keep must lie in 0...{steps}, got {sorted(keep)}")
