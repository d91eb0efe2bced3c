"""One descent loop: a loss as a function of the step, an optimiser, a schedule, clipping and averaged weights.

The loop knows nothing about data or models. Randomness belongs to the loss (a generator that it closes over), so that a run is a
function of its seed. It returns the loss of every step; whoever calls writes them to a history.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tasks.training.averaging import MovingAverage

if TYPE_CHECKING:
    import torch

Loss = Callable[[int], "torch.Tensor"]
Schedule = Literal["constant", "cosine"]


def descend(
    loss: Loss,
    parameters: Iterable[torch.nn.Parameter] | Sequence[Mapping[str, Any]],
    steps: int,
    *,
    rate: float,
    optimiser: Literal["adam", "adamw"] = "adam",
    weight_decay: float = 0.0,
    schedule: Schedule = "constant",
    clip: float | None = None,
    average: MovingAverage | None = None,
    after: Callable[[int, float], None] | None = None,
) -> np.ndarray:
    """Minimise a stochastic loss.

    Args:
        loss: step (0-based) -> scalar tensor with a graph.
        parameters: tensors, or groups of them as torch's optimisers take (`[{"params": ..., "lr": ...}]`).
        steps: how many, at least 1.
        rate: learning rate; with `schedule="cosine"` it falls to 0 over all steps (Loshchilov & Hutter, 2017).
        optimiser: Adam (Kingma & Ba, 2015) or AdamW (Loshchilov & Hutter, 2019).
        weight_decay: as torch's optimiser means it.
        schedule: of the learning rate.
        clip: largest norm of the joint gradient, or None.
        average: is updated after every step.
        after: called with (step, loss) after every step: progress bars, early diagnostics.

    Returns:
        losses (steps,), float64.

    Raises:
        ValueError: for steps < 1, a rate or clip that is not positive, no parameters, or an unknown name.
        FloatingPointError: at the first loss or gradient that is not finite, naming the step.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.tensor([3.0]))
    >>> losses = descend(lambda step: (w - 1).square().sum(), [w], 300, rate=0.1, schedule="cosine")
    >>> round(w.item(), 3), losses.shape
    (1.0, (300,))
    """
    import torch

    given = list(parameters)
    groups: list[Any] = [dict(group) for group in given] if given and isinstance(given[0], Mapping) else [{"params": given}]
    for group in groups:
        group["params"] = list(group["params"])
    every = [parameter for group in groups for parameter in group["params"]]
    _check(steps, rate, clip, every)
    makers = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    if optimiser not in makers or schedule not in ("constant", "cosine"):
        raise ValueError(f"unknown optimiser {optimiser!r} or schedule {schedule!r}; known: adam, adamw; constant, cosine")
    stepper = makers[optimiser](groups, lr=rate, weight_decay=weight_decay)
    initial = [float(group["lr"]) for group in stepper.param_groups]
    losses = np.empty(steps)
    for step in range(steps):
        share = 0.5 * (1 + math.cos(math.pi * step / steps)) if schedule == "cosine" else 1.0
        for group, start in zip(stepper.param_groups, initial, strict=True):
            group["lr"] = start * share
        stepper.zero_grad(set_to_none=True)
        value = loss(step)
        losses[step] = float(value.detach())
        if not np.isfinite(losses[step]):
            raise FloatingPointError(f"the loss is {losses[step]} at step {step}; lower the learning rate ({rate}) or check the data")
        value.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(every, clip if clip is not None else math.inf)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"the gradient is not finite at step {step}; lower the learning rate ({rate}) or check the data")
        stepper.step()
        if average is not None:
            average.update()
        if after is not None:
            after(step, losses[step])
    return losses


def _check(steps: int, rate: float, clip: float | None, parameters: Sequence[Any]) -> None:
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if not rate > 0:
        raise ValueError(f"rate must be positive, got {rate}")
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be positive or None, got {clip}")
    if not parameters:
        raise ValueError("no parameters to train, got an empty list; pass model.parameters()")
