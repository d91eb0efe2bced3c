"""PREFORL: a policy from contrasting successful segments with degraded copies of themselves, and CPL, its predecessor.

    repeat: draw M segments of D+; degrade their actions (noise) and their states' actions (borrowed from the nearest failure)
            loss = w_a softplus(lambda S(action-degraded) - S+) + w_s softplus(lambda S(state-degraded) - S+)

No value function is learned. With `negatives="failures"` the second segment is one of D- at its own states, which is CPL (Hejna et al.,
2024, eq. 5). Several arms and seeds train side by side, each with its own generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from tasks.common.node import Params
from tasks.offline_rl.degradation import degrade_actions
from tasks.offline_rl.episodes import NoNegativeTrajectories
from tasks.offline_rl.learning_data import DataStack, LearningData
from tasks.offline_rl.preference import gaussian_log_prob, preference_loss, segment_score
from tasks.offline_rl.segments import sample_segments

if TYPE_CHECKING:
    import torch

    from tasks.offline_rl.stacked import StackedMlp

CHUNK = 32
"""Updates whose segments and noise are drawn at once."""


class ContrastiveConfig(Params):
    """One arm: what is contrasted with what, and how strongly.

    Attributes:
        negatives: degraded by noise on the actions (`action`), by borrowed actions (`state`), by both, uniform in the action box
            (`uniform`), or recorded failures at their own states (`failures`, which is CPL). `both` falls back to `action` without D-.
        alpha: temperature of the log-likelihood.
        bias: lambda in (0, 1], weight of the negatives' score.
        sigma: standard deviation of the noise, in units where the action box is [-1, 1].
        spread: fixed standard deviation of the policy.
        gamma: discount within a segment.
        action_share: w_a; w_s is the rest.
        clip_degraded: keep noisy actions inside the box.
        segments: M, per update.
        k: steps per segment.
        rate: of Adam.
        updates: in all.
        hidden: layers of the policy.
        dropout: during training.
        checkpoints: how many evenly spaced iterates to return.
        start: arm of the warm-start stage whose weights it starts from; empty for random weights.
        shuffled: control: successes are assigned to trajectories at random.
    """

    negatives: Literal["both", "action", "state", "uniform", "failures"] = "both"
    alpha: float = Field(0.05, gt=0)
    bias: float = Field(0.5, gt=0, le=1)
    sigma: float = Field(0.3, ge=0)
    spread: float = Field(0.5, gt=0)
    gamma: float = Field(1.0, gt=0, le=1)
    action_share: float = Field(0.5, ge=0, le=1)
    clip_degraded: bool = False
    segments: int = Field(16, ge=1)
    k: int = Field(16, ge=1)
    rate: float = Field(1e-3, gt=0)
    updates: int = Field(3000, ge=1)
    hidden: tuple[int, ...] = (64, 64)
    dropout: float = Field(0.0, ge=0, lt=1)
    checkpoints: int = Field(5, ge=1)
    start: str = ""
    shuffled: bool = False

    def weights(self, has_failures: bool) -> tuple[float, float]:
        """(w_a, w_s) for data with or without failures."""
        share = {"action": 1.0, "uniform": 1.0, "state": 0.0, "failures": 1.0}.get(self.negatives, self.action_share)
        return (share, 1 - share) if has_failures or self.negatives != "both" else (1.0, 0.0)

    @property
    def shape(self) -> tuple[object, ...]:
        """What arms that train in one stack must share."""
        names = ("segments", "k", "rate", "updates", "hidden", "dropout", "checkpoints", "spread", "gamma", "clip_degraded", "start")
        return (self.negatives == "failures", *(getattr(self, name) for name in names))


@dataclass(frozen=True)
class Job:
    """One policy to train: an arm on a data set of the stack, with the numbers that seed its generator."""

    config: ContrastiveConfig
    part: int
    seed: tuple[int, ...]


@dataclass
class Iterates:
    """What training returns.

    Attributes:
        weights: tensors of the stacked policies by number of updates.
        history: (update, name, values (P,)): `loss`, `logit` (mean of S+ - lambda S-), `log_prob` (mean over D+).
    """

    weights: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    history: list[tuple[int, str, np.ndarray]] = field(default_factory=list)


def train_contrastive(
    stack: DataStack,
    jobs: Sequence[Job],
    initial: Sequence[torch.Tensor] | None = None,
    after: Callable[[int, float], None] | None = None,
) -> Iterates:
    """Train P policies side by side.

    Args:
        stack: the data sets.
        jobs: P arms of one `ContrastiveConfig.shape`.
        initial: first tensors of the stacked policies; random ones if None.
        after: called with (step, summed loss).

    Raises:
        NoNegativeTrajectories: if an arm needs failures that its data set does not have.
        ValueError: for no jobs, or of different shapes.

    Example:
        >>> from tasks.offline_rl.learning_data import learning_data
        >>> from tasks.offline_rl.episodes import Episodes
        >>> end = np.array([True, False])
        >>> two = Episodes(np.array([[0.0], [2.0]]), np.array([[0.5], [-0.5]]), np.array([1.0, 0.0]), np.zeros((2, 1)), end, ~end, end,
        ...                np.arange(2), np.array([-1.0]), np.array([1.0]))
        >>> config = ContrastiveConfig(updates=4, checkpoints=2, k=1, hidden=(4,))
        >>> sorted(train_contrastive(DataStack([learning_data(two)]), [Job(config, 0, (0,))]).weights)
        [2, 4]
    """
    from tasks.offline_rl.stacked import StackedMlp, generators_of
    from tasks.training.loop import descend

    shared = _shared(stack, jobs)
    generators = generators_of([job.seed for job in jobs])
    d, a = stack.obs.shape[1], stack.action.shape[1]
    policy = StackedMlp(generators, (d, *shared.hidden, a), squash=True, dropout=shared.dropout).to(stack.device)
    if initial is not None:
        policy.load(initial)
    terms = _Terms(stack, jobs, generators)
    kept = set(np.linspace(0, shared.updates, shared.checkpoints + 1)[1:].round().astype(int).tolist())
    every = max(shared.updates // 20, 1)
    found = Iterates()

    def loss(step: int) -> torch.Tensor:
        values, logit, log_prob = terms(policy, step, generators)
        if step % every == 0 or step == shared.updates - 1:
            for name, value in (("loss", values), ("logit", logit), ("log_prob", log_prob)):
                found.history.append((step, name, value.detach().cpu().double().numpy()))
        return values.sum()

    def stepped(step: int, value: float) -> None:
        if step + 1 in kept:
            found.weights[step + 1] = policy.weights()
        if after is not None:
            after(step, value)

    descend(loss, policy.parameters(), shared.updates, rate=shared.rate, after=stepped)
    return found


class _Terms:
    """Loss (P,), mean logit (P,) and mean log-likelihood of D+ (P,) of one update."""

    def __init__(self, stack: DataStack, jobs: Sequence[Job], generators: Sequence[torch.Generator]) -> None:
        import torch

        self.stack, self.jobs, self.generators, self.shared = stack, jobs, generators, jobs[0].config
        self.spans = [stack.spans(job.part, "positive") for job in jobs]
        self.failures = self.shared.negatives == "failures"
        self.failed = [stack.spans(job.part, "negative") for job in jobs] if self.failures else []

        def per_job(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, device=stack.device)

        self.alpha = per_job([j.config.alpha for j in jobs])[:, None]
        self.bias = per_job([j.config.bias for j in jobs])[:, None]
        self.sigma = per_job([j.config.sigma for j in jobs])[:, None, None]
        self.uniform = [j.config.negatives == "uniform" for j in jobs]
        mixed = [j.config.weights(len(stack.parts[j.part].negative) > 0) for j in jobs]
        self.action_weight, self.state_weight = (per_job([m[i] for m in mixed]) for i in (0, 1))
        self.drawn: list[torch.Tensor] = []

    def __call__(
        self, policy: StackedMlp, step: int, generators: Sequence[torch.Generator]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        import torch

        if step % CHUNK == 0:
            self.drawn = self._draw()
        rows, other = self.drawn[0][step % CHUNK], self.drawn[1][step % CHUNK]
        mean = policy(self.stack.obs[rows], generators)  # (P, M k, a)
        action = self.stack.action[rows]
        log_prob = gaussian_log_prob(mean, action, self.shared.spread)
        preferred = self._score(log_prob)  # (P, M)
        values, logit = torch.zeros_like(preferred[:, 0]), torch.zeros_like(preferred[:, 0])
        for weight, negative in self._negatives(policy, mean, action, rows, other, generators):
            score = self.bias * negative
            values = values + weight * preference_loss(preferred, negative, self.bias).mean(1)
            logit = logit + weight * (preferred - score).mean(1)
        return values, logit, log_prob.mean(1)

    def _score(self, log_prob: torch.Tensor) -> torch.Tensor:
        split = log_prob.view(len(log_prob), self.shared.segments, self.shared.k)
        return segment_score(split, self.alpha, self.shared.gamma)

    def _negatives(
        self,
        policy: StackedMlp,
        mean: torch.Tensor,
        action: torch.Tensor,
        rows: torch.Tensor,
        other: torch.Tensor,
        generators: Sequence[torch.Generator],
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(weight (P,), score of the negatives (P, M)) of every operator that some arm uses."""
        spread = self.shared.spread
        if self.failures:
            failed = gaussian_log_prob(policy(self.stack.obs[other], generators), self.stack.action[other], spread)
            yield self.action_weight, self._score(failed)
            return
        if bool((self.action_weight > 0).any()):
            clip = (-1.0, 1.0) if self.shared.clip_degraded else None
            noisy = degrade_actions(action, self.sigma, other, clip)
            for p, uniform in enumerate(self.uniform):
                if uniform:
                    noisy[p] = other[p]
            yield self.action_weight, self._score(gaussian_log_prob(mean, noisy, spread))
        if bool((self.state_weight > 0).any()):
            borrowed = self.stack.action[self.stack.neighbour[rows].clamp(min=0)]
            yield self.state_weight, self._score(gaussian_log_prob(mean, borrowed, spread))

    def _draw(self) -> list[torch.Tensor]:
        """Rows of positive segments and noise, or rows of failed segments, of `CHUNK` updates: (CHUNK, P, M k[, a])."""
        import torch

        m, k, a = self.shared.segments, self.shared.k, self.stack.action.shape[1]
        rows, other = [], []
        for p, generator in enumerate(self.generators):
            rows.append(sample_segments(*self.spans[p], CHUNK * m, k, generator).view(CHUNK, m * k))
            if self.failures:
                other.append(sample_segments(*self.failed[p], CHUNK * m, k, generator).view(CHUNK, m * k))
            elif self.uniform[p]:
                other.append(2 * torch.rand((CHUNK, m * k, a), generator=generator) - 1)
            else:
                other.append(torch.randn((CHUNK, m * k, a), generator=generator))
        return [torch.stack(x, 1).to(self.stack.device) for x in (rows, other)]


def preference_accuracy(
    mean_positive: np.ndarray,
    action: np.ndarray,
    negative: np.ndarray,
    lengths: np.ndarray,
    config: ContrastiveConfig,
    generator: torch.Generator,
    draws: int = 200,
) -> float:
    """Share of held-out segments that a policy prefers to their degraded copies: S+ > lambda S-.

    Segments are drawn as in training: steps of one trajectory in time order.

    Args:
        mean_positive: actions of the policy in the states of D+, (n, a), in [-1, 1].
        action: recorded ones, (n, a).
        negative: degraded ones, (n, a).
        lengths: steps of every trajectory, one after another in the rows, summing to n.
        config: alpha does not matter, lambda, k and the discount do.
        generator: which steps make a segment.
        draws: number of segments.
    """
    import torch

    good, bad = (-np.square(x - mean_positive).sum(1) for x in (action, negative))
    starts = np.r_[0, np.cumsum(lengths)[:-1]]
    picks = sample_segments(torch.as_tensor(starts), torch.as_tensor(lengths), draws, config.k, generator).numpy()
    weights = config.gamma ** np.arange(config.k)
    return float(((good[picks] * weights).sum(1) > config.bias * (bad[picks] * weights).sum(1)).mean())


def _shared(stack: DataStack, jobs: Sequence[Job]) -> ContrastiveConfig:
    if len({job.config.shape for job in jobs}) != 1:
        raise ValueError(f"policies of one stack need one shape, got {len({job.config.shape for job in jobs})} of them")
    for job in jobs:
        require_failures(job.config, stack.parts[job.part])
    return jobs[0].config


def require_failures(config: ContrastiveConfig, data: LearningData) -> None:
    """Refuse an arm that contrasts with recorded failures, on data without any.

    Raises:
        NoNegativeTrajectories: naming what is undefined.
    """
    if config.negatives in ("failures", "state") and not len(data.negative):
        raise NoNegativeTrajectories(0.0, {"failures": "CPL", "state": "state degradation"}[config.negatives])
