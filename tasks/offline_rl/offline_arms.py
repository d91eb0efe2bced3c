"""One data set, any method: train an arm over several seeds and score it on trajectories that it never saw.

The stages for D4RL and the tool for a person's own data both go through here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tasks.offline_rl.cloning import CloningConfig, clone_behaviour
from tasks.offline_rl.contrastive import ContrastiveConfig, Job, preference_accuracy, train_contrastive
from tasks.offline_rl.degradation import nearest_failures
from tasks.offline_rl.episodes import Episodes
from tasks.offline_rl.learning_data import DataStack, LearningData
from tasks.offline_rl.policies import Policies, policies_of
from tasks.offline_rl.value_learning import ValueConfig

Config = ContrastiveConfig | CloningConfig | ValueConfig


def train_arm(
    config: Config,
    data: LearningData,
    seeds: Sequence[tuple[int, ...]],
    device: str = "cpu",
    after: Callable[[int, float], None] | None = None,
) -> Policies:
    """The last iterates of one arm, one policy per seed, all trained in one stack.

    Args:
        config: its type is the method.
        data: the training trajectories.
        seeds: numbers that seed each policy's generator.
        device: torch device.
        after: called with (step, loss).

    Raises:
        NoNegativeTrajectories: if the arm needs failures and there are none.

    Example:
        >>> from tasks.offline_rl.learning_data import learning_data
        >>> end = np.array([True, False])
        >>> two = Episodes(np.array([[0.0], [2.0]]), np.array([[0.5], [-0.5]]), np.array([1.0, 0.0]), np.zeros((2, 1)), end, ~end, end,
        ...                np.arange(2), np.array([-1.0]), np.array([1.0]))
        >>> len(train_arm(CloningConfig(updates=2, batch=2, hidden=(4,)), learning_data(two), [(0,), (1,)]))
        2
    """
    stack, count = DataStack([data], device), len(seeds)
    if isinstance(config, ContrastiveConfig):
        weights = train_contrastive(stack, [Job(config, 0, s) for s in seeds], after=after).weights
    elif isinstance(config, CloningConfig):
        weights = clone_behaviour(stack, [0] * count, seeds, config, after).weights
    else:
        from tasks.offline_rl.value_arms import learner_of
        from tasks.offline_rl.value_learning import train_values

        weights = train_values(stack, [0] * count, seeds, config, learner_of(config, stack), after).weights
    return policies_of(weights[max(weights)], [data] * count)


def held_out_scores(policies: Policies, positive: Episodes, negative: Episodes | None, rng_seed: int = 0) -> list[dict[str, float]]:
    """For every policy `log_prob_held_out`, `accuracy_action` and, with failures, `accuracy_state`, on unseen successes.

    Args:
        policies: S of them.
        positive: successes that no learner saw.
        negative: failures that no learner saw.
        rng_seed: of the noise and the segments.
    """
    config, lengths = ContrastiveConfig(), positive.lengths
    half, middle = (positive.high - positive.low) / 2, (positive.high + positive.low) / 2
    action = (positive.action - middle) / half
    noisy = action + config.sigma * np.random.default_rng([rng_seed, 0]).normal(size=action.shape)
    from tasks.offline_rl.stacked import generators_of

    found = []
    for s in range(len(policies)):
        one = policies.take([s])
        states = one.standardise(positive.obs[None])
        mean = one.mean_action(states)[0]
        values: dict[str, Any] = {"log_prob_held_out": float(-np.square(action - mean).sum(1).mean() / (2 * config.spread**2))}
        values["accuracy_action"] = preference_accuracy(mean, action, noisy, lengths, config, generators_of([(rng_seed, 1)])[0])
        if negative is not None:
            near = nearest_failures(states[0], one.standardise(negative.obs[None])[0])
            borrowed = (negative.action[near] - middle) / half
            values["accuracy_state"] = preference_accuracy(mean, action, borrowed, lengths, config, generators_of([(rng_seed, 2)])[0])
        found.append(values)
    return found
