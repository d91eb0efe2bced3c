"""Fitted Q iteration: many small networks trained side by side, and the deterministic ridge version for fixed features.

All networks of one call are stacked along a first axis P and trained together, each on its own data with its own generator, so
that a network's weights do not depend on its neighbours. The continuation of a row multiplies the discount, so distilled rows
with soft continuations need no special case.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from tasks.common.node import Params
from tasks.offline_rl.transitions import TdBatch, check_batch

if TYPE_CHECKING:
    import torch


class FqiConfig(Params):
    """Fitted Q iteration with two-layer networks (Ernst et al., 2005; Riedmiller, 2005).

    `objective="residual"` descends on the Bellman residual itself, gradients through the target included (Baird, 1995).
    """

    hidden: int = Field(32, ge=1)
    iterations: int = Field(50, ge=1)
    steps: int = Field(20, ge=1)
    batch: int = Field(256, ge=1)
    learning_rate: float = Field(3e-3, gt=0)
    objective: Literal["fitted", "residual"] = "fitted"


@dataclass(frozen=True)
class QNetworks:
    """P two-layer ReLU networks, stacked.

    Attributes:
        w1: (P, d, H); b1: (P, 1, H); w2: (P, H, A); b2: (P, 1, A), float32.
    """

    w1: np.ndarray
    b1: np.ndarray
    w2: np.ndarray
    b2: np.ndarray

    def __len__(self) -> int:
        return len(self.w1)

    def values(self, obs: np.ndarray) -> np.ndarray:
        """Q (P, E, A) of states (P, E, d)."""
        hidden = np.maximum(np.matmul(obs.astype(np.float32), self.w1) + self.b1, 0)
        return np.asarray(np.matmul(hidden, self.w2) + self.b2)

    def greedy(self, obs: np.ndarray) -> np.ndarray:
        """Best actions (P, E) in states (P, E, d)."""
        return np.asarray(self.values(obs).argmax(axis=-1))


def fit_networks(
    batches: Sequence[TdBatch],
    gamma: float,
    n_actions: int,
    seeds: Sequence[int],
    config: FqiConfig | None = None,
    device: str = "cpu",
    keep: int = 1,
) -> list[QNetworks]:
    """Fitted Q iteration of P networks on P data sets of equal size.

    Each iteration freezes the targets r + gamma c max_a' Q(s', a') and takes `steps` Adam steps on the squared error,
    warm-started from the iteration before.

    Args:
        batches: P data sets of n rows each.
        gamma: discount, in [0, 1).
        n_actions: A.
        seeds: P seeds, of the first weights and of the minibatches.
        config: sizes and rates.
        device: where to train.
        keep: how many of the last iterates to return.

    Returns:
        the last `keep` iterates, oldest first.

    Raises:
        ValueError: for unequal sizes, `keep` outside 1..iterations, or as `check_batch`.

    Example:
        >>> one = TdBatch(np.zeros((4, 1)), np.array([0, 1, 0, 1]), np.array([0.0, 1, 0, 1]), np.zeros((4, 1)), np.zeros(4))
        >>> nets = fit_networks([one], 0.9, 2, seeds=[0])[-1]
        >>> int(nets.greedy(np.zeros((1, 1, 1)))[0, 0])
        1
    """
    import torch

    config = config or FqiConfig()
    _check(batches, gamma, n_actions)
    if len(seeds) != len(batches):
        raise ValueError(f"needs a seed per data set, got {len(seeds)} for {len(batches)}")
    if not 1 <= keep <= config.iterations:
        raise ValueError(f"keep must lie in 1..{config.iterations}, the number of iterations, got {keep}")
    n, dimension = len(batches[0]), batches[0].obs.shape[1]
    obs, reward, following, continuation = (
        torch.as_tensor(np.stack([getattr(b, name) for b in batches]), dtype=torch.float32, device=device)
        for name in ("obs", "reward", "next_obs", "continuation")
    )
    action = torch.as_tensor(np.stack([b.action for b in batches]), device=device)
    generators = [torch.Generator().manual_seed(int(s)) for s in seeds]
    first = [_first(g, dimension, config.hidden, n_actions) for g in generators]
    weights = [torch.stack(w).to(device).requires_grad_() for w in zip(*first, strict=True)]
    optimiser = torch.optim.Adam(weights, lr=config.learning_rate)
    size = min(config.batch, n)
    kept: list[QNetworks] = []
    for iteration in range(config.iterations):
        with torch.no_grad():
            target = reward + gamma * continuation * _forward(weights, following).amax(dim=-1)  # (P, n)
        rows = torch.stack([torch.randint(n, (config.steps, size), generator=g) for g in generators], 1).to(device)  # (steps, P, B)
        for row in rows:
            pick = row[..., None].expand(-1, -1, dimension)
            q = _forward(weights, obs.gather(1, pick)).gather(2, action.gather(1, row)[..., None])[..., 0]
            if config.objective == "fitted":
                goal = target.gather(1, row)
            else:
                ahead = _forward(weights, following.gather(1, pick)).amax(dim=-1)
                goal = reward.gather(1, row) + gamma * continuation.gather(1, row) * ahead
            optimiser.zero_grad()
            (q - goal).square().mean(dim=1).sum().backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        if iteration >= config.iterations - keep:
            kept.append(QNetworks(*(w.detach().cpu().numpy().copy() for w in weights)))
    return kept


def ridge_fqi(
    features: np.ndarray,
    next_features: np.ndarray,
    batch: TdBatch,
    gamma: float,
    n_actions: int,
    ridge: float = 1e-3,
    sweeps: int = 150,
) -> np.ndarray:
    """Fitted Q iteration for Q(s, a) = phi(s) . w_a by ridge regression, deterministic.

    The normal equations of each action are factorised once. An action without rows keeps zero weights, with a warning.

    Args:
        features: phi(s), (n, F).
        next_features: phi(s'), (n, F).
        batch: actions, rewards and continuations of the n rows.
        gamma: discount, in [0, 1).
        n_actions: A.
        ridge: penalty on w_a, relative to the mean squared error, >= 0.
        sweeps: iterations.

    Returns:
        weights (A, F).

    Raises:
        ValueError: as `fit_networks`, or for features of another length than the batch.
    """
    from scipy.linalg import cho_factor, cho_solve

    _check([batch], gamma, n_actions)
    if features.shape != next_features.shape or len(features) != len(batch):
        raise ValueError(f"features must be ({len(batch)}, F) twice, got {features.shape} and {next_features.shape}")
    if not (np.isfinite(features).all() and np.isfinite(next_features).all()):
        raise ValueError("features hold numbers that are not finite")
    if not (np.isfinite(ridge) and ridge >= 0) or sweeps < 1:
        raise ValueError(f"needs ridge >= 0 and at least one sweep, got {ridge} and {sweeps}")
    weights = np.zeros((n_actions, features.shape[1]))
    solvers = []
    for a in range(n_actions):
        rows = np.flatnonzero(batch.action == a)
        if not rows.size:
            warnings.warn(f"action {a} has no rows, its weights stay zero", stacklevel=2)
            continue
        x = features[rows]
        solvers.append((a, rows, x, cho_factor(x.T @ x / rows.size + ridge * np.eye(x.shape[1]))))
    for _ in range(sweeps):
        target = batch.reward + gamma * batch.continuation * (next_features @ weights.T).max(axis=1)
        weights = weights.copy()
        for a, rows, x, factor in solvers:
            weights[a] = cho_solve(factor, x.T @ target[rows] / rows.size)
    return weights


def _check(batches: Sequence[TdBatch], gamma: float, n_actions: int) -> None:
    sizes = {len(b) for b in batches}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"data sets of one call must have one size, at least 1 row, got {sorted(sizes)}")
    for b in batches:
        check_batch(b, n_actions, gamma)


def _first(generator: torch.Generator, dimension: int, hidden: int, n_actions: int) -> list[torch.Tensor]:
    import torch

    shapes = [((dimension, hidden), dimension), ((1, hidden), dimension), ((hidden, n_actions), hidden), ((1, n_actions), hidden)]
    return [(2 * torch.rand(shape, generator=generator) - 1) / fan_in**0.5 for shape, fan_in in shapes]


def _forward(weights: list[torch.Tensor], obs: torch.Tensor) -> torch.Tensor:
    w1, b1, w2, b2 = weights
    return (obs @ w1 + b1).relu() @ w2 + b2  # (P, n, d) -> (P, n, A)
