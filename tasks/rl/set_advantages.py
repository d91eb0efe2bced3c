"""Advantages of sets of trajectories: one score for a set, shared by all its members (Ibn Hamid et al., 2025, arXiv 2509.25424).

`set_advantages` is all that a PPO or GRPO loop needs: it takes the returns and the signatures of groups of rollouts from one
state (or prompt) and gives each rollout its advantage. A signature is whatever tells kinds of behaviour apart: rooms visited, nodes of a
generated graph, an answer. This module knows nothing about environments or networks.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

Objective = Literal["polychromic", "mean", "additive", "single"]
Diversity = Literal["share", "excess"]


@dataclass(frozen=True)
class SetAdvantages:
    """What `set_advantages` found for G groups of N rollouts, in M sets each.

    Attributes:
        advantage: of each rollout (G, N), the mean over the sets it is in; 0 in none.
        weight: how many sets it is in (G, N): multiply the policy loss by it, and rollouts in no set teach nothing.
        score: f of every set (G, M).
        members: rollouts of every set (G, M, n).
        scale: what the centred scores were divided by; 0 when all were equal.
    """

    advantage: np.ndarray
    weight: np.ndarray
    score: np.ndarray
    members: np.ndarray
    scale: float

    @property
    def silent_share(self) -> float:
        """Share of the groups whose sets all score the same, so that they teach nothing."""
        return float((np.ptp(self.score, axis=1) == 0).mean())


def set_advantages(
    returns: np.ndarray,
    signatures: np.ndarray | Sequence[Sequence[Hashable]],
    rng: np.random.Generator,
    *,
    set_size: int = 4,
    sets: int = 4,
    objective: Objective = "polychromic",
    diversity: Diversity = "share",
    bonus: float = 0.5,
    standardise: bool = True,
    members: np.ndarray | None = None,
) -> SetAdvantages:
    """Advantages A_m = f(g_m) - mean_m f(g_m) of random sets g_m, brought back to the rollouts.

    Args:
        returns: R in [0, 1], (G, N): N rollouts from each of G states.
        signatures: (G, N), whole numbers or anything hashable.
        rng: draws the sets.
        set_size: n, distinct rollouts in a set.
        sets: M, sets drawn in each group.
        objective: `polychromic`: mean R x diversity (Eq. 7); `mean`: without diversity; `additive`: mean R + bonus x diversity;
            `single`: no sets, A_i = R_i - mean R, with the average weight of the others.
        diversity: see `distinct_share`.
        bonus: of `additive`.
        standardise: divide by the standard deviation of A over all sets of the batch; they are centred in each group already.
        members: sets (G, M, n) instead of drawn ones.

    Raises:
        ValueError: for returns outside [0, 1], n > N, M < 1, an unknown name, or shapes that do not fit.

    Example:
        >>> found = set_advantages([[1.0, 1.0, 0.0, 1.0]], [["a", "a", "b", "a"]], np.random.default_rng(0), set_size=2,
        ...     members=np.array([[[0, 1], [0, 2]]]), standardise=False)
        >>> found.score.tolist(), found.advantage.tolist()
        ([[0.0, 0.5]], [[0.0, -0.25, 0.25, 0.0]])
    """
    rewards = np.asarray(returns, float)
    kinds = as_numbers(signatures)
    if rewards.ndim != 2 or kinds.shape != rewards.shape:
        raise ValueError(f"returns and signatures need one shape (G, N), got {rewards.shape} and {kinds.shape}")
    if not ((rewards >= 0) & (rewards <= 1)).all():
        raise ValueError(f"returns must lie in [0, 1], got {rewards.min()}..{rewards.max()}; rescale them")
    if objective not in get_args(Objective):
        raise ValueError(f"unknown objective {objective!r}; known: {', '.join(get_args(Objective))}")
    groups, size = rewards.shape
    drawn = draw_sets(groups, size, set_size, sets, rng) if members is None else np.asarray(members)
    if objective == "single":
        centred = rewards - rewards.mean(1, keepdims=True)
        scale = float(centred.std()) if standardise else 1.0
        weight = np.full(rewards.shape, drawn.shape[1] * drawn.shape[2] / size)
        return SetAdvantages(divide(centred, scale), weight, rewards, drawn, scale)
    score = set_scores(rewards, kinds, drawn, objective, diversity, bonus)
    centred = score - score.mean(1, keepdims=True)
    scale = float(centred.std()) if standardise else 1.0
    total, weight = np.zeros(rewards.shape), np.zeros(rewards.shape)
    group = np.broadcast_to(np.arange(groups)[:, None, None], drawn.shape)
    np.add.at(total, (group, drawn), np.broadcast_to(divide(centred, scale)[:, :, None], drawn.shape))
    np.add.at(weight, (group, drawn), 1.0)
    return SetAdvantages(total / np.maximum(weight, 1), weight, score, drawn, scale)


def set_scores(
    returns: np.ndarray,
    kinds: np.ndarray,
    members: np.ndarray,
    objective: Objective = "polychromic",
    diversity: Diversity = "share",
    bonus: float = 0.5,
) -> np.ndarray:
    """Scores f (G, M) of sets (G, M, n) of rollouts with returns and kinds (G, N)."""
    group = np.arange(len(returns))[:, None, None]
    mean = returns[group, members].mean(-1)
    if objective == "mean":
        return np.asarray(mean)
    spread = distinct_share(kinds[group, members], diversity)
    return np.asarray(mean * spread if objective == "polychromic" else mean + bonus * spread)


def distinct_share(kinds: np.ndarray, diversity: Diversity = "share") -> np.ndarray:
    """Diversity d of sets by their kinds (..., n).

    `share` is U / n for U distinct kinds and 0 when all are the same; `excess` is (U - 1) / (n - 1), which has no jump.

    Raises:
        ValueError: for an unknown name.

    Example:
        >>> distinct_share(np.array([[0, 0, 1, 2], [5, 5, 5, 5]])).tolist()
        [0.75, 0.0]
    """
    if diversity not in get_args(Diversity):
        raise ValueError(f"unknown diversity {diversity!r}; known: {', '.join(get_args(Diversity))}")
    ordered = np.sort(kinds, axis=-1)
    distinct = 1 + (ordered[..., 1:] != ordered[..., :-1]).sum(-1)
    n = kinds.shape[-1]
    if diversity == "excess":
        return np.asarray((distinct - 1) / max(n - 1, 1))
    return np.where(distinct > 1, distinct / n, 0.0)


def draw_sets(groups: int, size: int, set_size: int, sets: int, rng: np.random.Generator) -> np.ndarray:
    """M sets (G, M, n) of n distinct rollouts out of N, each drawn afresh.

    Raises:
        ValueError: for n outside 1..N or M < 1.
    """
    if not 1 <= set_size <= size:
        raise ValueError(f"set_size must lie in 1..{size} (rollouts in a group), got {set_size}")
    if sets < 1:
        raise ValueError(f"sets must be at least 1, got {sets}")
    return rng.random((groups, sets, size)).argsort(-1)[..., :set_size]


def as_numbers(signatures: np.ndarray | Sequence[Sequence[Hashable]]) -> np.ndarray:
    """Signatures as whole numbers (G, N); equal ones get equal numbers."""
    if isinstance(signatures, np.ndarray) and signatures.dtype.kind in "iu":
        return signatures
    known: dict[Hashable, int] = {}
    return np.array([[known.setdefault(one, len(known)) for one in group] for group in signatures])


def divide(centred: np.ndarray, scale: float) -> np.ndarray:
    """Centred scores over their scale, 0 where nothing differs."""
    return centred / scale if scale > 1e-12 else np.zeros_like(centred)
