"""Two ways of training a constructive policy under constraints, both REINFORCE with a shared baseline.

`nobt`: masked decoding without backtracking; where the set runs empty all unvisited nodes are allowed and violations are penalised. With
the two-step set this is how PIP is trained (and how the published LMask weights of all but one benchmark were made); without a set it is
POMO with a penalty. `bt`: LazyMask itself, with a small budget, and the penalty after it is used up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from tasks.common.node import Params
from tasks.rl.shared_baseline import group_advantages, policy_loss
from tasks.routing.attention_model import AttentionModel
from tasks.routing.instances import Instances
from tasks.routing.lazymask import Decoded, lazy_decode
from tasks.routing.lookahead import Lookahead
from tasks.training.averaging import MovingAverage
from tasks.training.loop import descend

Draw = Callable[[int], Instances]


class RouteParams(Params):
    """One way of training.

    Attributes:
        route: `nobt` without, `bt` with backtracking.
        budget: R of `bt`; the route `nobt` has none.
        lookahead: set from which decoding starts.
        updates: how many; the budget of training, counted so that a run is a function of its seed.
        batch: fresh instances per update.
        samples: S, tours per instance; default one per node.
        rate: of Adam.
        weight_decay: of Adam.
        schedule: of the rate.
        penalty: rho, weight of the violations (sum of the excess and number of violated nodes), in scaled units.
        entropy: lambda_H.
        clip: largest norm of the gradient.
        autocast: bfloat16 for the network; windows and masks stay float64.
    """

    route: Literal["nobt", "bt"] = "bt"
    budget: int = Field(10, ge=0)
    lookahead: Lookahead = "tsl"
    updates: int = Field(100, ge=1)
    batch: int = Field(64, ge=1)
    samples: int | None = Field(None, ge=2)
    rate: float = Field(3e-4, gt=0)
    weight_decay: float = Field(1e-6, ge=0)
    schedule: Literal["constant", "cosine"] = "constant"
    penalty: float = Field(1.0, ge=0)
    entropy: float = Field(0.0, ge=0)
    clip: float = Field(1.0, gt=0)
    autocast: bool = False


def penalised_cost(instances: Instances, tours: Tensor, weight: float = 1.0) -> Tensor:
    """Psi = length + rho (sum of excess + number of violated nodes), (B, S, N) -> (B, S).

    >>> from tasks.routing.tsptw import tsptw
    >>> late = tsptw([[[0, 0], [3, 4]]], [[[0, 99], [0, 4]]])
    >>> penalised_cost(late, torch.tensor([[[0, 1]]]))
    tensor([[12.]], dtype=torch.float64)
    """
    length = instances.length(tours)
    if weight == 0:
        return length
    excess = instances.excess(tours)
    return length + weight * (excess.sum(-1) + (excess > 0).sum(-1))


def reinforce(model: AttentionModel, instances: Instances, params: RouteParams, generator: torch.Generator) -> tuple[Tensor, Decoded]:
    """One batch's loss, with a graph, and the tours behind it."""
    device = model.depot.weight.device
    with torch.autocast(device.type, torch.bfloat16, enabled=params.autocast):
        encoded = model.encode(instances)
        decoded = lazy_decode(
            instances,
            model.scorer(instances, encoded),
            params.budget if params.route == "bt" else 0,
            lookahead=params.lookahead,
            samples=params.samples or instances.nodes,
            generator=generator,
            training=True,
        )
        log_probs, entropy = model.tour_log_probs(encoded, decoded)
    advantages = group_advantages(-penalised_cost(instances, decoded.tours, params.penalty))
    return policy_loss(log_probs.float(), advantages, entropy.float(), params.entropy), decoded


def train_policy(
    model: AttentionModel,
    draw: Draw,
    params: RouteParams,
    generator: torch.Generator,
    after: Callable[[int, dict[str, float]], None] | None = None,
    average: MovingAverage | None = None,
) -> np.ndarray:
    """Train in place on fresh instances.

    Args:
        model: its device is where decoding happens.
        draw: number of instances -> instances.
        params: how.
        generator: draws tours; on the model's device.
        after: called with (update, {mean length, share of infeasible samples, mean backtracks}) of the batch.
        average: of the weights, updated after every step.

    Returns:
        losses, (updates,).
    """
    device = model.depot.weight.device
    seen: dict[str, float] = {}

    def loss(step: int) -> Tensor:
        instances = draw(params.batch).to(device)
        value, decoded = reinforce(model, instances, params, generator)
        if after is not None:
            seen["length"] = float(instances.length(decoded.tours).mean())
            seen["infeasible"] = float((~decoded.solved).double().mean())
            seen["backtracks"] = float(decoded.backtracks.double().mean())
        return value

    return descend(
        loss,
        model.parameters(),
        params.updates,
        rate=params.rate,
        weight_decay=params.weight_decay,
        schedule=params.schedule,
        clip=params.clip,
        average=average,
        after=(lambda step, value: after(step, seen)) if after is not None else None,
    )
