"""Warm start by imitation: maximum likelihood of optimal tours under the masks that decoding would have shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from tasks.common.node import Params
from tasks.routing.attention_model import AttentionModel
from tasks.routing.augmentation import random_images
from tasks.routing.instances import Instances
from tasks.routing.lazymask import Decoded
from tasks.routing.lookahead import CandidateSets, Lookahead
from tasks.training.loop import descend


class ImitationParams(Params):
    """How optimal tours are imitated.

    Attributes:
        updates: how many.
        batch: instances per update, drawn with replacement and put under a random symmetry of the square.
        rate: of Adam.
        schedule: of the rate.
        lookahead: set under which choices are scored.
        clip: largest norm of the gradient.
    """

    updates: int = Field(300, ge=1)
    batch: int = Field(128, ge=1)
    rate: float = Field(1e-3, gt=0)
    schedule: Literal["constant", "cosine"] = "cosine"
    lookahead: Lookahead = "tsl"
    clip: float = Field(1.0, gt=0)


def replay(instances: Instances, tours: Tensor, lookahead: Lookahead = "tsl") -> Decoded:
    """What `lazy_decode` would have recorded, had it built these tours without backtracking.

    Args:
        instances: B instances.
        tours: (B, S, N), the depot first.
        lookahead: the set at every level.

    Raises:
        ValueError: if a tour's next node is not in the set, so that the tour is infeasible, or no tour.

    >>> from tasks.routing.generators import random_tsptw
    >>> from tasks.routing.lazymask import lazy_decode
    >>> from tasks.routing.policies import nearest
    >>> hard = random_tsptw(4, 8, "hard", torch.Generator().manual_seed(2))
    >>> found = lazy_decode(hard, nearest(hard), budget=50)
    >>> bool((replay(hard, found.tours).clock == found.clock).all())
    True
    """
    b, samples, nodes = tours.shape
    levels = nodes - 1
    clock = instances.clocks(tours)[..., :levels]
    visited = torch.nn.functional.one_hot(tours, nodes).cumsum(2)[:, :, :levels].bool()
    visited[..., 0] = True
    sets = CandidateSets(instances, lookahead)
    rows = torch.arange(b, device=tours.device)
    current = tours[..., :levels]
    flat = sets(rows, current.reshape(b, -1), clock.reshape(b, -1), (~visited).reshape(b, -1, nodes))
    allowed = flat.view(b, samples, levels, nodes)
    following = allowed.gather(-1, tours[..., 1:, None])[..., 0]
    if not following.all():
        i, s, level = (~following).nonzero()[0].tolist()
        raise ValueError(f"tour {s} of instance {i} goes to node {int(tours[i, s, level + 1])}, which is not in the set at level {level}")
    none = torch.zeros((b, samples), dtype=torch.long, device=tours.device)
    flags = torch.zeros_like(current, dtype=torch.bool)
    return Decoded(
        tours,
        torch.ones_like(none, dtype=torch.int8),
        none,
        none + levels,
        current,
        clock,
        torch.zeros_like(current),
        allowed,
        flags,
        flags,
    )


def imitate(
    model: AttentionModel,
    instances: Instances,
    tours: Tensor,
    params: ImitationParams,
    generator: torch.Generator,
    after: Callable[[int, float], None] | None = None,
) -> np.ndarray:
    """Train in place on instances with one optimal tour each.

    Args:
        model: on the device of the instances.
        instances: B instances.
        tours: (B, N).
        params: how.
        generator: draws batches and symmetries; on the CPU.
        after: called with (update, loss).

    Returns:
        losses: negative log-likelihood per decision, (updates,).
    """
    record = replay(instances, tours[:, None], params.lookahead)

    def loss(step: int) -> Tensor:
        rows = torch.randint(len(instances), (params.batch,), generator=generator).to(tours.device)
        batch = random_images(instances.take(rows), generator)
        chosen = Decoded(*(getattr(record, name)[rows] for name in Decoded.__dataclass_fields__))
        log_probs, _ = model.tour_log_probs(model.encode(batch), chosen)
        return -log_probs.mean() / (instances.nodes - 1)

    return descend(loss, model.parameters(), params.updates, rate=params.rate, schedule=params.schedule, clip=params.clip, after=after)
