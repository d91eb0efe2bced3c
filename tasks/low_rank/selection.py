"""Fine-tuning all layers of a model, and choosing among its iterates by held-out text.

The weighted objective alone is not to be trusted to the end: the Fisher information is noisy and the objective ignores how activations
correlate. The divergence from the dense model on calibration text that was held out decides which kept iterate is used, the start included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from tasks.low_rank.attention import AttentionBlock, Projection
from tasks.low_rank.factorisations import HeadFactors
from tasks.low_rank.fine_tuning import Trajectory, fine_tune, split_groups
from tasks.low_rank.measurement import Reference
from tasks.low_rank.methods import ModelFactors

Weights = Callable[[int, Projection], torch.Tensor]
"""(layer, projection) -> weights F of the objective, (h, E, H)."""

LAYERS = 3
"""Neighbouring layers that are fine-tuned in one batch; more no longer fit into the processor's cache."""


@dataclass(frozen=True)
class Tuned:
    """A model's fine-tuning.

    Attributes:
        start: factors at step 0.
        paths: the descent of every (layer, projection).
        kept: the steps whose factors were kept.
    """

    start: ModelFactors
    paths: dict[tuple[int, Projection], Trajectory]
    kept: tuple[int, ...]

    def factors(self, step: int, *, best: bool = False) -> ModelFactors:
        """Factors of all layers at a kept step; `best`: each projection's at its lowest objective until then."""
        found: ModelFactors = {}
        for key, path in self.paths.items():
            a, b = (path.best if best else path.last)[step]
            start = self.start[key]
            assert isinstance(start, HeadFactors)
            found[key] = HeadFactors(a, b, start.ranks)
        return found

    def objective(self) -> np.ndarray:
        """Mean normalised objective over layers and projections before each step and at the end, (steps + 1,)."""
        return np.asarray(np.mean([path.objective[:, 0] for path in self.paths.values()], axis=0))


def tune_model(
    blocks: Sequence[AttentionBlock],
    start: ModelFactors,
    weights: Weights,
    *,
    steps: int = 100,
    rate: float = 1e-4,
    keep_every: int = 25,
) -> Tuned:
    """Fine-tune the factors of every projection, layer after layer.

    Args:
        blocks: of the dense model.
        start: factors per head; uniform or global ranks.
        weights: of the objective.
        steps: of Adam.
        rate: of Adam.
        keep_every: iterates are kept at 0, this, twice this, ... and at the end.

    Raises:
        ValueError: if a start is not factorised per head.
    """
    kept = tuple(sorted({*range(0, steps + 1, keep_every), steps}))
    stacks: dict[tuple[int, int], list[tuple[int, Projection]]] = {}
    for (layer, p), found in start.items():
        if not isinstance(found, HeadFactors):
            raise ValueError(f"layer {layer}'s {p} has one latent for all heads; only factors per head are fine-tuned")
        stacks.setdefault((layer // LAYERS, found.A.shape[2]), []).append((layer, p))
    paths: dict[tuple[int, Projection], Trajectory] = {}
    for keys in stacks.values():  # neighbouring layers' projections of one rank are one batch
        F, W = (torch.cat(parts) for parts in zip(*((weights(*key), blocks[key[0]].weight(key[1])) for key in keys), strict=True))
        A, B = (torch.cat([getattr(start[key], side) for key in keys]) for side in ("A", "B"))
        sizes = [len(start[key].A) for key in keys]
        path = fine_tune(F, W, A, B, steps=steps, rate=rate, groups=sizes, keep=kept)
        paths.update(zip(keys, split_groups(path, sizes), strict=True))
    return Tuned(start, {key: paths[key] for key in start}, kept)


def select(tuned: Tuned, model: nn.Module, held_out: Reference, start: float | None = None) -> tuple[int, dict[int, float]]:
    """The kept step with the lowest divergence on held-out text, and the divergences; never worse than the start.

    Args:
        tuned: what `tune_model` returned.
        model: the dense model; factors are put in for the measurement and taken out again.
        held_out: text that the Fisher information was not taken from.
        start: the divergence at step 0, where it is known.
    """
    known = {} if start is None else {0: start}
    curve = {s: known[s] if s in known else held_out.quality_with(model, tuned.factors(s, best=True)).kl_nats for s in tuned.kept}
    return min(curve, key=lambda step: (curve[step], step)), curve
