"""Trained policies as plain arrays: what rollouts call and what is written to disk, without the learner that made them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tasks.common.formats import write_atomically

if TYPE_CHECKING:
    import torch

    from tasks.offline_rl.learning_data import LearningData


@dataclass(frozen=True)
class Policies:
    """P deterministic policies: standardised states -> ReLU layers -> tanh -> the action box.

    Attributes:
        weights: (P, i, o) and (P, 1, o) by layer, float32.
        mean: of the states, (P, d).
        scale: of the states, (P, d), positive.
        low: lower ends of the action box, (P, a).
        high: upper ends, (P, a).

    Example:
        >>> one = Policies((np.zeros((1, 2, 1), "f4"), np.zeros((1, 1, 1), "f4")), *(np.full((1, 2), v) for v in (0, 1)),
        ...                np.array([[-2.0]]), np.array([[4.0]]))
        >>> one.act(np.zeros((1, 5, 2))).ravel().tolist()
        [1.0, 1.0, 1.0, 1.0, 1.0]
    """

    weights: tuple[np.ndarray, ...]
    mean: np.ndarray
    scale: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def __post_init__(self) -> None:
        count = {len(x) for x in (*self.weights, self.mean, self.scale, self.low, self.high)}
        if len(count) != 1 or len(self.weights) % 2 or not self.weights:
            raise ValueError(f"every array needs the same leading axis and every layer a bias, got lengths {sorted(count)}")
        if self.weights[0].shape[1] != self.mean.shape[1] or self.weights[-1].shape[2] != self.low.shape[1]:
            raise ValueError(f"the layers take {self.weights[0].shape[1]} numbers to {self.weights[-1].shape[2]}, the data differ")

    def __len__(self) -> int:
        return len(self.mean)

    def mean_action(self, standardised: np.ndarray) -> np.ndarray:
        """Actions in [-1, 1], (P, E, a), of standardised states (P, E, d)."""
        hidden = standardised.astype(np.float32)
        for layer in range(0, len(self.weights), 2):
            if layer:
                hidden = np.maximum(hidden, 0)
            hidden = np.matmul(hidden, self.weights[layer]) + self.weights[layer + 1]
        return np.asarray(np.tanh(hidden))

    def standardise(self, obs: np.ndarray) -> np.ndarray:
        """States (P, E, d) in standard units."""
        return np.asarray((obs - self.mean[:, None]) / self.scale[:, None])

    def act(self, obs: np.ndarray) -> np.ndarray:
        """Actions (P, E, a) in the box, of states (P, E, d) in the environment's units."""
        unit = self.mean_action(self.standardise(obs)).astype(float)
        half, middle = (self.high - self.low) / 2, (self.high + self.low) / 2
        return np.asarray(middle[:, None] + half[:, None] * unit)

    def take(self, which: Sequence[int]) -> Policies:
        """Some of the policies, in this order."""
        index = np.asarray(which, int)
        return Policies(tuple(w[index] for w in self.weights), *(x[index] for x in (self.mean, self.scale, self.low, self.high)))


def stack_policies(parts: Sequence[Policies]) -> Policies:
    """Policies of one shape in one stack.

    Raises:
        ValueError: if there are none.
    """
    if not parts:
        raise ValueError("no policies to stack")
    weights = tuple(np.concatenate(w) for w in zip(*(p.weights for p in parts), strict=True))
    rest = (np.concatenate([getattr(p, name) for p in parts]) for name in ("mean", "scale", "low", "high"))
    return Policies(weights, *rest)


def write_policies(path: Path, policies: Mapping[str, Policies]) -> None:
    """Write as safetensors: `<name>/<tensor>`, layers numbered."""
    from safetensors.numpy import save_file

    tensors: dict[str, np.ndarray] = {}
    for name, one in policies.items():
        tensors |= {f"{name}/layer{i:02d}": np.ascontiguousarray(w, np.float32) for i, w in enumerate(one.weights)}
        tensors |= {f"{name}/{key}": np.ascontiguousarray(getattr(one, key), np.float64) for key in ("mean", "scale", "low", "high")}
    write_atomically(path, lambda p: save_file(tensors, p))


def read_policies(path: Path) -> dict[str, Policies]:
    """Read what `write_policies` wrote, by name."""
    from safetensors.numpy import load_file

    parts: dict[str, dict[str, np.ndarray]] = {}
    for key, value in sorted(load_file(path).items()):
        name, _, tensor = key.rpartition("/")
        parts.setdefault(name, {})[tensor] = value
    return {
        name: Policies(
            tuple(t for key, t in tensors.items() if key.startswith("layer")), *(tensors[k] for k in ("mean", "scale", "low", "high"))
        )
        for name, tensors in parts.items()
    }


def policies_of(weights: Sequence[torch.Tensor], parts: Sequence[LearningData]) -> Policies:
    """Policies from the tensors of a stacked actor, network p having learned from `parts[p]`.

    An actor with more outputs than actions (a mean and a spread) keeps its first ones.
    """
    a = parts[0].action.shape[1]
    arrays = [w.numpy() for w in weights]
    arrays[-2:] = [w[..., :a] for w in arrays[-2:]]
    rows = (np.stack(x) for x in zip(*((p.standardise.mean, p.standardise.scale, p.low, p.high) for p in parts), strict=True))
    return Policies(tuple(np.ascontiguousarray(w, np.float32) for w in arrays), *rows)
