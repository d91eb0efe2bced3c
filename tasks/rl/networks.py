"""Actor and critic as separate networks over whatever a world shows, and what a rollout needs of them: numbers, without gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import nn


class Policy(Protocol):
    """What the updates and the rollouts need of an actor and a critic."""

    actor: nn.Module
    critic: nn.Module

    def logits(self, observation: np.ndarray) -> torch.Tensor:
        """Action logits (N, A) of observations (N, ...)."""
        ...

    def logits_and_values(self, observation: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Action logits (N, A) and values (N,)."""
        ...

    def behaviour(self, observation: np.ndarray) -> np.ndarray:
        """Action probabilities (N, A), float32."""
        ...

    def appraise(self, observation: np.ndarray) -> np.ndarray:
        """Values (N,) as numbers."""
        ...

    def refresh(self) -> None:
        """Take note that the weights have changed."""
        ...


class TablePolicy:
    """Actor and critic over U distinct observations that are known beforehand; observations are their numbers.

    Rollouts look probabilities and values up in tables that fill as observations turn up, and are emptied when the weights change; a
    batch with repeated observations is evaluated, and differentiated, once for each distinct one.

    Args:
        features: network inputs (U, D).
        actor: (B, D) -> (B, A).
        critic: (B, D) -> (B, 1).

    Example:
        >>> policy = TablePolicy(torch.eye(3), mlp([3, 4, 2], generator(0)), mlp([3, 4, 1], generator(1)))
        >>> policy.logits(np.array([2, 0, 2])).shape, policy.behaviour(np.array([1])).shape
        (torch.Size([3, 2]), (1, 2))
    """

    def __init__(self, features: torch.Tensor, actor: nn.Module, critic: nn.Module) -> None:
        self.features, self.actor, self.critic = features, actor, critic
        self._probability = _Table(len(features), lambda rows: self.actor(self.features[rows]).softmax(-1))
        self._value = _Table(len(features), lambda rows: self.critic(self.features[rows])[:, 0])

    def onlooker(self) -> TablePolicy:
        """The same weights with tables of its own.

        Which rows a table computes together decides their last bits, and training carries these on. Who only looks at a policy in training
        asks its onlooker, so that the looks change nothing.
        """
        return TablePolicy(self.features, self.actor, self.critic)

    def logits(self, observation: np.ndarray) -> torch.Tensor:
        """Action logits (N, A)."""
        inputs, place = self._distinct(observation)
        found: torch.Tensor = self.actor(inputs)[place]
        return found

    def logits_and_values(self, observation: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Action logits (N, A) and values (N,)."""
        inputs, place = self._distinct(observation)
        return self.actor(inputs)[place], self.critic(inputs)[place, 0]

    def _distinct(self, observation: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        rows, place = np.unique(observation, return_inverse=True)
        return self.features[torch.from_numpy(rows)], torch.from_numpy(place)

    def behaviour(self, observation: np.ndarray) -> np.ndarray:
        """Action probabilities (N, A)."""
        return self._probability.at(observation)

    def appraise(self, observation: np.ndarray) -> np.ndarray:
        """Values as numbers."""
        return self._value.at(observation)

    def refresh(self) -> None:
        """Forget the tables, the weights having changed."""
        self._probability.clear()
        self._value.clear()


class _Table:
    """Rows of a function of whole numbers, computed when first asked for."""

    def __init__(self, rows: int, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._function = function
        self._known = np.zeros(rows, bool)
        self._kept: np.ndarray | None = None

    def at(self, rows: np.ndarray) -> np.ndarray:
        if not (known := self._known[rows]).all() or self._kept is None:
            wanted = np.unique(rows[~known])
            with torch.no_grad():
                found = self._function(torch.from_numpy(wanted)).cpu().numpy()
            if self._kept is None:
                self._kept = np.zeros((len(self._known), *found.shape[1:]), found.dtype)
            self._kept[wanted] = found
            self._known[wanted] = True
        return np.asarray(self._kept[rows])

    def clear(self) -> None:
        self._known[:] = False


def generator(*seed: int) -> torch.Generator:
    """A torch generator from a sequence of whole numbers, independent of every other sequence."""
    state = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def mlp(widths: Sequence[int], rng: torch.Generator, last_gain: float = 1.0) -> nn.Sequential:
    """A perceptron with tanh between its layers; Xavier weights from the generator, biases 0.

    Args:
        widths: inputs, hidden layers, outputs.
        rng: of the weights.
        last_gain: factor of the last layer's weights; small ones start a policy near uniform.
    """
    layers: list[nn.Module] = []
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
        layer = nn.utils.skip_init(nn.Linear, fan_in, fan_out)  # type: ignore[no-untyped-call]
        last = i == len(widths) - 2
        nn.init.xavier_uniform_(layer.weight, gain=last_gain if last else 1.0, generator=rng)
        nn.init.zeros_(layer.bias)
        layers += [layer] if last else [layer, nn.Tanh()]
    return nn.Sequential(*layers)
