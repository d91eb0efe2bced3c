"""Bellman-loss matching: distil offline-RL data without training a Q function.

Gupta et al. (arXiv 2512.00536), Algorithm 2. For a predictor f with reward scale lambda,

    L(D; f, lambda) = mean_i (f(s_i, a_i) - lambda r_i - gamma c_i max_a' f(s'_i, a'))^2,

with our continuation c = 1 - terminated. The synthetic rows move until their losses on k fixed random predictors equal the
training set's. Actions are discrete and stay those of the first rows; states, rewards, next states and continuations move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from tasks.common.node import Params
from tasks.distillation.descent import descend_adam, descend_gauss_newton, descend_lbfgs, mismatch
from tasks.distillation.predictors import AnyBank, BankConfig, to
from tasks.offline_rl.transitions import TdBatch, check_batch

if TYPE_CHECKING:
    import torch


class MatchingConfig(Params):
    """How synthetic transitions are fitted.

    Attributes:
        bank: name of the bank of predictors.
        k: how many of its predictors.
        optimiser: damped Gauss-Newton or L-BFGS in float64, or Adam in float32 with cosine decay.
        steps: limit of iterations, or Adam's steps.
        learning_rate: of Adam.
        weighting: squared loss differences as they are, or each divided by its squared training loss.
        start: random rows, or rows stratified by termination.
        move: everything; states with s' - s on a tenth of the rate (`tied`); or only rewards and continuations (`signal`).
        reward: free, or implied by the continuation as the mixture of the training set's mean rewards of continuing and
            terminating rows.
        clip: first continuations are at least this far from 0 and 1, so that their logits can move.
        anchor: penalty of Adam and L-BFGS on the mean squared distance from the first rows; Gauss-Newton's steps are the shortest.
    """

    bank: str = "rff"
    k: int = Field(1000, ge=1)
    optimiser: Literal["gauss_newton", "lbfgs", "adam"] = "gauss_newton"
    steps: int = Field(30, ge=1)
    learning_rate: float = Field(0.02, gt=0)
    weighting: Literal["absolute", "relative"] = "absolute"
    start: Literal["random", "stratified"] = "random"
    move: Literal["all", "tied", "signal"] = "all"
    reward: Literal["free", "implied"] = "free"
    clip: float = Field(0.05, gt=0, lt=0.5)
    anchor: float = Field(0.0, ge=0)


@dataclass(frozen=True)
class DistilledTransitions:
    """Outcome: the synthetic rows, and the matching objective at start and end."""

    batch: TdBatch
    start: float
    end: float


def bellman_losses(batch: TdBatch, bank: AnyBank, gamma: float, law: BankConfig | None = None, chunk: int = 250) -> np.ndarray:
    """L(D; f_j, lambda_j) for every predictor of a bank, shape (k,), without gradients.

    Args:
        batch: n transitions.
        bank: k predictors.
        gamma: discount, in [0, 1).
        law: what the loss looks at; everything by default.
        chunk: rows at a time.

    Raises:
        ValueError: for gamma outside [0, 1), states or actions the bank does not know, continuations outside [0, 1], or numbers that
            are not finite.

    Example:
        >>> from tasks.distillation.predictors import draw_bank
        >>> bank = draw_bank(BankConfig(), 3, 2, 2, 1.0, np.random.default_rng(0))
        >>> row = TdBatch(np.zeros((1, 2)), np.array([1]), np.ones(1), np.zeros((1, 2)), np.zeros(1))
        >>> bellman_losses(row, bank, 0.9).shape
        (3,)
    """
    import torch

    _check(batch, bank, gamma)
    law = law or BankConfig()
    dtype, device = bank.reward_scale.dtype, bank.reward_scale.device
    total = torch.zeros(len(bank.reward_scale), dtype=torch.float64, device=device)
    with torch.no_grad():
        for begin in range(0, len(batch), chunk):
            part = batch.take(np.arange(begin, min(begin + chunk, len(batch))))
            columns = (part.obs, part.reward, part.next_obs, part.continuation)
            s, r, following, c = (torch.as_tensor(x, dtype=dtype, device=device) for x in columns)
            total += _squared_errors(bank, s, part.action, r, following, c, gamma, law).sum(0).double()
    return (total / len(batch)).cpu().numpy()


def distil_transitions(
    first: TdBatch,
    targets: np.ndarray,
    bank: AnyBank,
    gamma: float,
    config: MatchingConfig,
    law: BankConfig | None = None,
    reward_levels: tuple[float, float] = (0.0, 0.0),
) -> DistilledTransitions:
    """Move synthetic transitions until their Bellman losses equal the training set's (Algorithm 2).

    Args:
        first: the m rows to start from.
        targets: the training set's losses on the bank, (k,), from `bellman_losses` with the same law.
        bank: k predictors, where the work happens (device).
        gamma: discount, in [0, 1).
        config: how.
        law: what the loss looks at.
        reward_levels: mean learning reward of continuing and of terminating rows, for `reward="implied"`.

    Returns:
        the rows, actions sorted; continuations between 0 and 1. The objective is mean_j (B_j - T_j)^2 w_j with weights so that
        predicting zero loss scores 1.

    Raises:
        ValueError: as `bellman_losses`, or for targets of another length than the bank.

    Example:
        >>> from tasks.distillation.predictors import draw_bank
        >>> rng = np.random.default_rng(0)
        >>> s = rng.standard_normal((300, 2))
        >>> train = TdBatch(s, rng.integers(2, size=300), s[:, 0], s + 0.1, (rng.random(300) < 0.9) * 1.0)
        >>> bank = draw_bank(BankConfig(), 50, 2, 2, 1.0, rng)
        >>> found = distil_transitions(train.take(np.arange(10)), bellman_losses(train, bank, 0.9), bank, 0.9, MatchingConfig(steps=20))
        >>> found.end < 0.1 * found.start
        True
    """
    import torch

    _check(first, bank, gamma)
    if len(targets) != len(bank.reward_scale):
        raise ValueError(f"needs a target loss per predictor, got {len(targets)} for {len(bank.reward_scale)}")
    if not (np.isfinite(targets).all() and (targets >= 0).all() and (targets > 0).any()):
        raise ValueError("target losses must be finite, none negative and not all zero; compute them with `bellman_losses`")
    law = law or BankConfig()
    device = str(bank.reward_scale.device)
    dtype = torch.float32 if config.optimiser == "adam" else torch.float64
    bank = to(bank, dtype, device)
    rows = first.take(np.argsort(first.action, kind="stable"))
    layout = _Layout(rows, config, reward_levels, dtype, device)
    start = layout.start
    goal = torch.as_tensor(targets, dtype=dtype, device=device)
    weight = 1 / goal.square().clamp_min(1e-12) if config.weighting == "relative" else torch.ones_like(goal) / goal.square().mean()

    def per_row(x: torch.Tensor) -> torch.Tensor:
        s, r, following, c = layout.columns(x)
        return _squared_errors(bank, s, rows.action, r, following, c, gamma, law)

    def objective(x: torch.Tensor) -> torch.Tensor:
        return mismatch(per_row, x, goal, weight) + config.anchor * (x - start).square().mean()

    if config.optimiser == "adam":
        x = descend_adam(objective, start, config.steps, config.learning_rate)
    elif config.optimiser == "lbfgs":
        x = descend_lbfgs(objective, start, config.steps)
    else:
        x = descend_gauss_newton(per_row, start, goal, weight, config.steps)
    with torch.no_grad():
        begin, end = (float(mismatch(per_row, at, goal, weight)) for at in (start, x))
        s, r, following, c = (column.double().cpu().numpy() for column in layout.columns(x))
    return DistilledTransitions(TdBatch(s, rows.action, r, following, c), begin, end)


def reward_levels(batch: TdBatch) -> tuple[float, float]:
    """Mean learning reward of continuing and of terminating rows; the mean of all for a kind that does not occur.

    Example:
        >>> zero = np.zeros((3, 1))
        >>> reward_levels(TdBatch(zero, np.zeros(3, int), np.array([-1.0, -3.0, 5.0]), zero, np.array([1.0, 1.0, 0.0])))
        (-2.0, 5.0)
    """
    ended = batch.continuation < 0.5
    overall = float(batch.reward.mean())
    return tuple(float(batch.reward[rows].mean()) if rows.any() else overall for rows in (~ended, ended))  # type: ignore[return-value]


def relative_loss_error(losses: np.ndarray, targets: np.ndarray) -> float:
    """Root mean square of the loss differences over predictors, divided by the root mean square loss.

    Raises:
        ValueError: for other numbers of losses than of targets, or targets that are all zero.

    Example:
        >>> relative_loss_error(np.array([1.0, 1.5]), np.array([1.0, 1.0])).__round__(4)
        0.3536
    """
    if np.shape(losses) != np.shape(targets) or not np.any(targets):
        raise ValueError(f"needs a loss per target and a target above zero, got {np.shape(losses)} and {np.shape(targets)}")
    return float(np.sqrt(np.mean((losses - targets) ** 2) / np.mean(targets**2)))


def _check(batch: TdBatch, bank: AnyBank, gamma: float) -> None:
    check_batch(batch, bank.n_actions, gamma)
    if batch.obs.shape[1] != bank.dimension:
        raise ValueError(f"the bank knows states of {bank.dimension} coordinates, got {batch.obs.shape[1]}")


def _squared_errors(
    bank: AnyBank,
    obs: torch.Tensor,
    action: np.ndarray,
    reward: torch.Tensor,
    following: torch.Tensor,
    continuation: torch.Tensor,
    gamma: float,
    law: BankConfig,
) -> torch.Tensor:
    """Squared TD errors, (n, k), rows grouped by action."""
    import torch

    groups = [np.flatnonzero(action == a) for a in range(bank.n_actions)]
    embedded = bank.embed(obs)
    value = torch.cat([bank.values(embedded[torch.as_tensor(g, device=obs.device)], a) for a, g in enumerate(groups)])
    order = torch.as_tensor(np.concatenate(groups), device=obs.device)
    error = value - reward[order][:, None] * bank.reward_scale
    if law.bootstrap:
        ahead = bank.embed(following[order])
        best = bank.values(ahead, 0)
        for a in range(1, bank.n_actions):
            best = torch.maximum(best, bank.values(ahead, a))
        keep = continuation[order][:, None] if law.terminals else 1.0
        error = error - gamma * keep * best
    return error.square()


class _Layout:
    """Synthetic rows as one matrix X (m, p): states, next states or steps, logits of continuations, rewards."""

    def __init__(self, rows: TdBatch, config: MatchingConfig, levels: tuple[float, float], dtype: torch.dtype, device: str) -> None:
        import torch

        def tensor(values: np.ndarray) -> torch.Tensor:
            return torch.as_tensor(values, dtype=dtype, device=device)

        self.obs, self.following = tensor(rows.obs), tensor(rows.next_obs)
        self.move, self.levels = config.move, levels if config.reward == "implied" else None
        logit = torch.logit(tensor(rows.continuation).clamp(config.clip, 1 - config.clip))
        parts = {"all": [self.obs, self.following], "tied": [self.obs, torch.zeros_like(self.obs)], "signal": []}[self.move]
        parts.append(logit[:, None])
        if self.levels is None:
            parts.append(tensor(rows.reward)[:, None])
        self.start = torch.cat(parts, dim=1)

    def columns(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """(s, r, s', c) of a matrix X."""
        d = self.obs.shape[1]
        obs, following, rest = self.obs, self.following, x
        if self.move != "signal":
            obs, second, rest = x[:, :d], x[:, d : 2 * d], x[:, 2 * d :]
            following = second if self.move == "all" else obs + (self.following - self.obs) + 0.1 * second
        keep = rest[:, 0].sigmoid()
        reward = rest[:, 1] if self.levels is None else self.levels[0] * keep + self.levels[1] * (1 - keep)
        return obs, reward, following, keep
