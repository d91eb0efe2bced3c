"""What many attempts at every configuration say about a policy: success, pass@k, return, diversity, entropy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.rl.pass_at_k import pass_at_k
from tasks.rl.rollouts import Behaviour, Trajectories, World, roll_out
from tasks.rl.set_advantages import distinct_share


@dataclass(frozen=True)
class Attempts:
    """K attempts at each of C configurations; every array is (K, C).

    Attributes:
        returns: undiscounted returns.
        places: sets of places visited, a bit each.
        entropy: mean entropy (nats) of the policy along the attempt.
    """

    returns: np.ndarray
    places: np.ndarray
    entropy: np.ndarray

    @property
    def success(self) -> np.ndarray:
        """Whether the attempt solved the task."""
        return self.returns > 0

    def pass_at(self, k: int) -> float:
        """Mean over configurations of the unbiased pass@k."""
        return float(pass_at_k(self.success.sum(0), len(self.returns), k).mean())

    def diversity(self, group: int = 4) -> float:
        """Mean share of distinct place sets, U / group, over groups of consecutive attempts at one configuration.

        Raises:
            ValueError: for fewer attempts than a group has.
        """
        if len(self.places) < group:
            raise ValueError(f"a group takes {group} attempts, got {len(self.places)}")
        whole = len(self.places) // group
        sets = self.places[: whole * group].reshape(whole, group, -1).transpose(0, 2, 1)
        return float(np.maximum(distinct_share(sets), 1 / group).mean())


def attempt(world: World, behaviour: Behaviour, config: np.ndarray, uniforms: np.ndarray) -> Trajectories:
    """One attempt for each entry of `config` (N,), driven by uniforms (H, N)."""
    return roll_out(world, world.reset(config), config, behaviour, uniforms)


def attempts(world: World, behaviour: Behaviour, configs: int, count: int, rng: np.random.Generator) -> Attempts:
    """`count` attempts at each of the configurations 0..configs-1.

    Raises:
        ValueError: for count < 1.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    config = np.tile(np.arange(configs), count)
    return summed_up(attempt(world, behaviour, config, rng.random((world.horizon, len(config)))), count)


def summed_up(found: Trajectories, count: int) -> Attempts:
    """Trajectories of `count` rounds over all configurations, as attempts."""
    p = found.probability
    entropy = -(p * np.log(np.maximum(p, 1e-12))).sum(-1)
    mean = (entropy * found.alive).sum(0) / np.maximum(found.length, 1)
    return Attempts(*(a.reshape(count, -1) for a in (found.returns, found.places, mean)))


def greedy(behaviour: Behaviour) -> Behaviour:
    """The policy that always takes the likeliest action."""

    def likeliest(observation: np.ndarray) -> np.ndarray:
        p = behaviour(observation)
        return np.asarray(np.arange(p.shape[-1]) == p.argmax(-1)[:, None], np.float32)

    return likeliest
