"""Choose vAttention's sizes and bound for a density: the smallest output error on a few recorded requests, by grid search.

As in the paper's experiments epsilon and delta are searched together with the share of heavy keys and of the base sample, and the
density that is asked for is the share of keys read, on average over layers, heads and rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from tasks.attention.cells import Case, measure
from tasks.attention.interface import Predictor
from tasks.attention.vattention import Vattention, VAttentionConfig
from tasks.common.node import Params

SLACK = 1.02
"""A configuration may read this much more than its target on the calibration prompts."""


class GridParams(Params):
    """What is tried; every combination.

    Attributes:
        ends: sink and window, keys each.
        heavy: shares of heavy keys.
        base: shares of the residual in the base sample.
        epsilon: relative errors; delta takes the same value, as in the paper's experiments.
        base_min: least size of the base sample.
    """

    ends: int = Field(16, ge=0)
    heavy: tuple[float, ...] = (0.005, 0.01, 0.02, 0.05)
    base: tuple[float, ...] = (0.01, 0.02, 0.03, 0.05)
    epsilon: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3)
    base_min: int = Field(16, ge=2)

    def configs(self) -> Iterator[VAttentionConfig]:
        """All configurations."""
        for heavy, base, epsilon in itertools.product(self.heavy, self.base, self.epsilon):
            yield VAttentionConfig(
                sink=self.ends, window=self.ends, heavy=heavy, base=base, base_min=self.base_min, epsilon=epsilon, delta=epsilon
            )


@dataclass(frozen=True)
class Tried:
    """A configuration and how it did on the calibration prompts."""

    config: VAttentionConfig
    density: float
    err_mean: float


def try_all(
    prompts: Sequence[Sequence[Case]], configs: Sequence[VAttentionConfig], predictor: Predictor | None = None, seed: int = 0
) -> list[Tried]:
    """Mean density and error of each configuration; prompt p draws with seed + p."""
    tried = []
    scores = [[case.scores(predictor) for case in cases] for cases in prompts]
    for config in configs:
        method = Vattention(config)
        found = [measure(cases, method, seed + p, scores=scores[p]).summary() for p, cases in enumerate(prompts)]
        tried.append(Tried(config, sum(f["density"] for f in found) / len(found), sum(f["err_mean"] for f in found) / len(found)))
    return tried


def best_for(tried: Sequence[Tried], density: float) -> Tried:
    """The configuration with the smallest error among those that read at most `density`; the one that reads least if none does.

    Example:
        >>> c = VAttentionConfig()
        >>> best_for([Tried(c, 0.05, 0.3), Tried(c, 0.10, 0.2), Tried(c, 0.30, 0.1)], 0.1).err_mean
        0.2
    """
    within = [t for t in tried if t.density <= SLACK * density]
    return min(within, key=lambda t: t.err_mean) if within else min(tried, key=lambda t: t.density)


def tune(tried: Sequence[Tried], targets: Mapping[str, float]) -> dict[str, Tried]:
    """The best configuration for each target density."""
    return {name: best_for(tried, density) for name, density in targets.items()}
