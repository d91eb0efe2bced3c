"""Stage on the entropy analysis: what set objectives and plain policy gradient do to a rare rewarded action of a bandit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field, model_validator

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.plotting import COLOURS, figure
from tasks.common.statistics import summarise
from tasks.rl.bandit import SetScore, gradient_flow, marginal_advantages, mass_rates, mean_score, polychromic_score, sampled_ascent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class BanditParams(Params):
    """The bandit and how it is simulated.

    Attributes:
        policy: at the start.
        reward: of each action, in [0, 1].
        rare: the action whose mass is followed.
        set_size: n.
        time: of the gradient flow.
        steps: of the flow and of the ascent.
        batch: sets per step of the sampled ascent.
        seeds: sampled ascents.
        seed: of the draws.
    """

    policy: tuple[float, ...] = (0.9, 0.05, 0.05)
    reward: tuple[float, ...] = (1.0, 1.0, 0.0)
    rare: int = Field(1, ge=0)
    set_size: int = Field(4, ge=2, le=6)
    time: float = Field(20.0, gt=0.0)
    steps: int = Field(200, ge=1)
    batch: int = Field(64, ge=2)
    seeds: int = Field(10, ge=1)
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _fits(self) -> BanditParams:
        if len(self.policy) != len(self.reward) or self.rare >= len(self.policy):
            raise ValueError(f"policy, reward and rare must fit, got {len(self.policy)} and {len(self.reward)} actions, rare = {self.rare}")
        if min(self.policy) <= 0 or abs(sum(self.policy) - 1) > 1e-9 or not 0 <= min(self.reward) <= max(self.reward) <= 1:
            raise ValueError(f"policy must be positive and sum to 1, rewards lie in [0, 1], got {self.policy} and {self.reward}")
        return self


def evaluate(params: BanditParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `paths.parquet` (arm, seed, step, probabilities), and the figure `bandit`.

    Metrics for `poly`, `set_mean` (d = 1) and `plain` (n = 1): `<arm>.marginal_advantage.bandit` and `<arm>.mass_rate.bandit` of the
    rare action at the start, exact; `<arm>.mass_gain.bandit`, its sampled gain of probability at the end.
    """
    start, reward = np.array(params.policy), np.array(params.reward)
    arms: dict[str, tuple[SetScore, int]] = {
        "poly": (polychromic_score(reward), params.set_size),
        "set_mean": (mean_score(reward), params.set_size),
        "plain": (mean_score(reward), 1),
    }
    metrics: Metrics = {}
    flows: dict[str, np.ndarray] = {}
    walks: dict[str, np.ndarray] = {}
    for arm, (score, n) in log.progress(arms.items(), desc="bandit"):
        flows[arm] = gradient_flow(start, score, n, params.time, params.steps)
        rngs = [np.random.default_rng([params.seed, s]) for s in range(params.seeds)]
        walks[arm] = np.stack([sampled_ascent(start, score, n, params.time / params.steps, params.steps, params.batch, r) for r in rngs])
        metrics[f"{arm}.marginal_advantage.bandit"] = float(marginal_advantages(start, score, n)[params.rare])
        metrics[f"{arm}.mass_rate.bandit"] = float(mass_rates(start, score, n)[params.rare])
        metrics |= summarise(f"{arm}.mass_gain.bandit", walks[arm][:, -1, params.rare] - start[params.rare])
        metrics[f"{arm}.flow_gain.bandit"] = float(flows[arm][-1, params.rare] - start[params.rare])
    _write(out / "paths.parquet", walks)
    log.figure("bandit", draw(flows, walks, params))
    return metrics


def draw(flows: dict[str, np.ndarray], walks: dict[str, np.ndarray], params: BanditParams) -> Figure:
    """Left: the rare action's probability over time. Right: the phase plane of both rewarded actions."""
    labels = {
        "poly": f"polychromic, n = {params.set_size}",
        "set_mean": f"sets, d = 1, n = {params.set_size}",
        "plain": "plain policy gradient",
    }
    drawn, (left, right) = figure(8.4, 3.5, 1, 2)
    clock = np.linspace(0, params.time, params.steps + 1)
    top = int(np.argmax(params.policy))
    for i, arm in enumerate(flows):
        for walk in walks[arm][:5]:
            left.plot(clock, walk[:, params.rare], color=COLOURS[i], alpha=0.25, lw=0.7)
            right.plot(walk[:, top], walk[:, params.rare], color=COLOURS[i], alpha=0.25, lw=0.7)
        style: dict[str, Any] = {"color": COLOURS[i], "lw": 1.8, "ls": "--" if arm == "plain" else "-"}  # it lies on that of d = 1
        left.plot(clock, flows[arm][:, params.rare], label=labels[arm], **style)
        right.plot(flows[arm][:, top], flows[arm][:, params.rare], **style)
    right.plot(params.policy[top], params.policy[params.rare], "o", color="black", ms=5)
    left.set(xlabel="time of the ascent", ylabel="probability of the rare rewarded action")
    right.set(xlabel="probability of the dominant action", ylabel="probability of the rare one")
    left.legend(fontsize=8)
    return drawn


def _write(path: Path, walks: dict[str, np.ndarray]) -> None:
    import pandas as pd

    frames = []
    for arm, walk in walks.items():
        seeds, steps, actions = walk.shape
        table = pd.DataFrame(walk.reshape(-1, actions), columns=[f"p{a}" for a in range(actions)])
        seed, step = np.divmod(np.arange(seeds * steps), steps)
        frames.append(table.assign(arm=arm, seed=seed, step=step))
    write_parquet(path, pd.concat(frames, ignore_index=True))
