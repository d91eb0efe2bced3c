"""What learners see of a data set: standardised states, actions in [-1, 1], trajectories of both signs, and borrowed failures.

Everything that depends on the data alone is computed once here (statistics, nearest failures, returns), so that arms and seeds share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tasks.offline_rl.degradation import nearest_failures
from tasks.offline_rl.episodes import Episodes, split_by_return
from tasks.offline_rl.transitions import Standardiser

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LearningData:
    """N steps of the training trajectories of one data set.

    Attributes:
        obs: standardised states, (N, d) float32.
        action: in [-1, 1], (N, a) float32.
        next_obs: (N, d) float32.
        next_action: action of the following step, zeros at the end of an episode, (N, a) float32.
        has_next: 1 where there is a following step, (N,) float32.
        reward: (N,) float32.
        continuation: 0 where the task ended, 1 elsewhere, also where a limit of time cut the episode, (N,) float32.
        positive: (n+, 2) int64, first row and number of steps of every trajectory of D+.
        negative: (n-, 2), the same of D-; n- may be 0.
        neighbour: row of the nearest failed state for rows of D+, -1 elsewhere, (N,) int64.
        standardise: of the states, learned from all trajectories of D+ and D- given.
        low: lower ends of the action box, (a,).
        high: upper ends, (a,).
    """

    obs: np.ndarray
    action: np.ndarray
    next_obs: np.ndarray
    next_action: np.ndarray
    has_next: np.ndarray
    reward: np.ndarray
    continuation: np.ndarray
    positive: np.ndarray
    negative: np.ndarray
    neighbour: np.ndarray
    standardise: Standardiser
    low: np.ndarray
    high: np.ndarray

    def __len__(self) -> int:
        return len(self.obs)

    @property
    def positive_rows(self) -> np.ndarray:
        """Rows of D+."""
        return np.concatenate([np.arange(s, s + n) for s, n in self.positive])

    @property
    def negative_rows(self) -> np.ndarray:
        """Rows of D-, possibly none."""
        return np.concatenate([np.arange(s, s + n) for s, n in self.negative] or [np.zeros(0, int)])

    def discounted(self, gamma: float) -> np.ndarray:
        """Discounted return-to-go of every row, (N,) float32."""
        out = self.reward.astype(float).copy()
        for row in np.flatnonzero(self.has_next)[::-1]:
            out[row] += gamma * out[row + 1]
        return out.astype(np.float32)


def learning_data(episodes: Episodes, eta: float = 0.0, neighbour: np.ndarray | None = None) -> LearningData:
    """Prepare trajectories for learning.

    Args:
        episodes: the training trajectories.
        eta: a trajectory is a success if its return is above.
        neighbour: what `LearningData.neighbour` holds, if it is known already.

    Raises:
        NoPositiveTrajectories: if no return is above eta.

    Example:
        >>> from tasks.offline_rl.episodes import Episodes
        >>> end = np.array([True, False])
        >>> two = Episodes(np.array([[0.0], [2.0]]), np.ones((2, 1)), np.array([1.0, 0.0]), np.zeros((2, 1)), end, ~end, end,
        ...                np.arange(2), np.array([-1.0]), np.array([1.0]))
        >>> learning_data(two).neighbour.tolist()
        [1, -1]
    """
    positive, negative = split_by_return(episodes, eta)
    standardise = Standardiser.of(episodes.obs)
    obs = standardise(episodes.obs)
    half, middle = (episodes.high - episodes.low) / 2, (episodes.high + episodes.low) / 2
    action = (episodes.action - middle) / half
    inside = np.r_[np.diff(episodes.episode) == 0, False]
    if neighbour is None:
        neighbour = np.full(len(episodes), -1)
        if len(negative):
            rows, failed = episodes.rows(positive), episodes.rows(negative)
            neighbour[rows] = failed[nearest_failures(obs[rows], obs[failed])]
    spans = np.stack([episodes.starts, episodes.lengths], 1)
    following = np.where(inside[:, None], np.roll(action, -1, 0), 0)
    return LearningData(
        obs=obs.astype(np.float32),
        action=action.astype(np.float32),
        next_obs=standardise(episodes.next_obs).astype(np.float32),
        next_action=following.astype(np.float32),
        has_next=inside.astype(np.float32),
        reward=episodes.reward.astype(np.float32),
        continuation=1 - episodes.terminated.astype(np.float32),
        positive=spans[positive],
        negative=spans[negative],
        neighbour=neighbour.astype(np.int64),
        standardise=standardise,
        low=episodes.low,
        high=episodes.high,
    )


def hold_out(episodes: Episodes, share: float, rng: np.random.Generator, eta: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Indices of training and held-out trajectories, the share of each sign drawn by itself; one success always stays for training.

    Raises:
        NoPositiveTrajectories: if no return is above eta.
        ValueError: for a share outside [0, 1).
    """
    if not 0 <= share < 1:
        raise ValueError(f"the held-out share must lie in [0, 1), got {share}")
    held: list[int] = []
    for number, group in enumerate(split_by_return(episodes, eta)):
        count = min(round(share * len(group)), len(group) - (number == 0))
        held += rng.permutation(group)[: max(count, 0)].tolist()
    return np.setdiff1d(np.arange(episodes.n_episodes), held), np.sort(np.asarray(held, int))


class DataStack:
    """Data sets one after another as tensors; row r of data set i is row `offset[i] + r`.

    Args:
        parts: data sets with equal dimensions.
        device: torch device.

    Raises:
        ValueError: for no parts, or other dimensions.
    """

    def __init__(self, parts: Sequence[LearningData], device: str = "cpu") -> None:
        import torch

        if len({(p.obs.shape[1], p.action.shape[1]) for p in parts}) != 1:
            raise ValueError("needs at least one data set, all with equal numbers of state and action coordinates")
        self.parts, self.device = list(parts), device
        self.sizes = [len(p) for p in parts]
        self.offset = np.r_[0, np.cumsum(self.sizes)[:-1]]

        def joined(name: str) -> torch.Tensor:
            return torch.as_tensor(np.concatenate([getattr(p, name) for p in parts]), device=device)

        self.obs, self.action, self.next_obs, self.next_action = (joined(n) for n in ("obs", "action", "next_obs", "next_action"))
        self.has_next, self.reward, self.continuation = (joined(n) for n in ("has_next", "reward", "continuation"))
        shifted = [np.where(p.neighbour < 0, -1, p.neighbour + o) for p, o in zip(parts, self.offset, strict=True)]
        self.neighbour = torch.as_tensor(np.concatenate(shifted), device=device)

    def spans(self, part: int, sign: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Start rows and lengths of the trajectories of D+ (`positive`) or D- (`negative`) of a part, on the CPU."""
        import torch

        spans = getattr(self.parts[part], sign)
        return torch.as_tensor(spans[:, 0] + self.offset[part]), torch.as_tensor(np.ascontiguousarray(spans[:, 1]))


def write_neighbours(path: Path, data: LearningData, train: np.ndarray, held: np.ndarray) -> None:
    """Keep what was computed from the data alone: the split, the statistics and the nearest failures (small NPZ)."""
    from tasks.common.formats import write_atomically

    arrays = {"train": train, "held": held, "mean": data.standardise.mean, "scale": data.standardise.scale, "neighbour": data.neighbour}

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    write_atomically(path, save)


def read_neighbours(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Indices of training trajectories, of held-out ones, and the nearest failures, as `write_neighbours` kept them."""
    with np.load(path) as arrays:
        return arrays["train"], arrays["held"], arrays["neighbour"]
