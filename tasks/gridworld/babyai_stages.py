"""Stages of BabyAI's own levels with networks that read instructions: demonstrations, cloning and fine-tuning, comparison."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Literal
from zlib import crc32

import numpy as np
import torch
from pydantic import Field

from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import paired, summarise
from tasks.gridworld.instruction_networks import InstructionPolicy
from tasks.gridworld.instruction_worlds import InstructionWorlds, bot_demonstrations, minari_demonstrations
from tasks.rl.attempts import Attempts, attempts
from tasks.rl.behaviour_cloning import clone
from tasks.rl.fine_tuning import Arm, fine_tune

PAPER = {"gamma": 1.0, "lam": 0.95, "clip": 0.2, "epochs": 2, "minibatch": 64, "actor_rate": 1e-5, "critic_rate": 1e-4, "kl": 0.01}
ARMS: dict[str, Arm] = {
    "ppo": Arm(episodes=64, **PAPER),
    "reinforce": Arm(update="reinforce", episodes=32, **(PAPER | {"actor_rate": 1e-4})),
    "poly": Arm(objective="polychromic", episodes=8, window=5, **PAPER),
    "poly_ucb": Arm(objective="polychromic", episodes=8, window=5, ucb=0.01, **PAPER),
}


class BabyAIParams(Params):
    """One level, from demonstrations to comparison.

    Attributes:
        env_id: minigrid's name.
        data: what the level is called in metrics.
        source: demonstrations from the Minari data set, or made by the bot.
        dataset: identifier in the local Minari store.
        demonstrated: steps to read, or configurations that the bot shows.
        configs: training configurations.
        arms: ways of fine-tuning, with the paper's rates and batch sizes.
        env_steps: of every arm and seed, vines included.
        seeds: policies.
        width: of the networks.
        epochs: of cloning.
        tries: attempts per configuration in the end.
        horizon: steps of an episode.
        device: of the networks.
        seed: of everything random.
    """

    env_id: str = "BabyAI-GoTo-v0"
    data: str = "babyai_goto"
    source: Literal["minari", "bot"] = "minari"
    dataset: str = "minigrid/BabyAI-GoTo/optimal-v0"
    demonstrated: int = Field(100_000, ge=1)
    configs: int = Field(50, ge=1)
    arms: dict[str, Arm] = Field(ARMS, min_length=1)
    env_steps: int = Field(3_000_000, ge=1)
    seeds: int = Field(3, ge=1)
    width: int = Field(128, ge=1)
    epochs: int = Field(10, ge=1)
    tries: int = Field(100, ge=4)
    horizon: int = Field(100, ge=1)
    device: str = "cpu"
    seed: int = Field(0, ge=0)


def prepare(params: BabyAIParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `demonstrations.npz`. Metrics: `expert.steps.<data>`."""
    if params.source == "minari":
        observation, action = minari_demonstrations(params.dataset, params.demonstrated)
    else:
        observation, action = bot_demonstrations(params.env_id, 1000 + np.arange(params.demonstrated), params.horizon)
    np.savez_compressed(out / "demonstrations.npz", observation=observation, action=action)
    return {f"expert.steps.{params.data}": float(len(action))}


def train(params: BabyAIParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<arm>.<seed>.safetensors` of every arm, and of `pretrained`.

    Metrics: `<arm>.env_steps.<data>`, `pretrained.imitation.<data>`.
    """
    (folder,) = inputs.values()
    cloned = [(params, folder, out, s) for s in range(params.seeds)]
    imitation = list(log.progress(map_parallel(_clone, cloned), total=len(cloned), desc="clone"))
    jobs = [(params, out, arm, s) for arm in params.arms for s in range(params.seeds)]
    taken = list(log.progress(map_parallel(_tune, jobs), total=len(jobs), desc="fine-tune"))
    metrics = summarise(f"pretrained.imitation.{params.data}", imitation)
    for arm in params.arms:
        own = [float(steps) for job, steps in zip(jobs, taken, strict=True) if job[2] == arm]
        metrics |= summarise(f"{arm}.env_steps.{params.data}", own)
    return metrics


def evaluate(params: BabyAIParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: every attempt runs in minigrid.

    Metrics: `<arm>.{pass<k>,return,diversity4}.<data>`, and paired differences to `pretrained` and `ppo`.
    """
    (folder,) = inputs.values()
    arms = ("pretrained", *params.arms)
    jobs = [(params, folder, arm, s) for arm in arms for s in range(params.seeds)]
    found: dict[str, list[Attempts]] = {}
    for job, tried in zip(jobs, log.progress(map_parallel(_attempt, jobs), total=len(jobs), desc="attempt"), strict=True):
        found.setdefault(job[2], []).append(tried)
    values: dict[tuple[str, str], list[float]] = {}
    for arm, own in found.items():
        values |= {(arm, f"pass{k}"): [t.pass_at(k) for t in own] for k in (1, 2, 5, 10, 20, 50, 100) if k <= params.tries}
        values[arm, "return"] = [float(t.returns.mean()) for t in own]
        values[arm, "diversity4"] = [t.diversity() for t in own]
    metrics: Metrics = {}
    for (arm, quantity), numbers in values.items():
        metrics |= summarise(f"{arm}.{quantity}.{params.data}", numbers)
    for arm, other, quantity in product(arms, ("pretrained", "ppo"), ("pass1", "pass10", "return")):
        if arm != other and (arm, quantity) in values and (other, quantity) in values:
            name = f"{arm}.{quantity}.{params.data}-{other}.{quantity}.{params.data}"
            metrics |= paired(name, values[arm, quantity], values[other, quantity])
    return metrics


def _worlds(params: BabyAIParams) -> InstructionWorlds:
    return InstructionWorlds(params.env_id, np.arange(params.configs), params.horizon)


def _policy(params: BabyAIParams, weights: Path | None, seed: int = 0) -> InstructionPolicy:
    from safetensors.torch import load_model

    policy = InstructionPolicy(InstructionWorlds.actions, seed, params.width, params.device)
    if weights is not None:
        load_model(_both(policy), str(weights))
    return policy


def _both(policy: InstructionPolicy) -> torch.nn.ModuleDict:
    return torch.nn.ModuleDict({"actor": policy.actor, "critic": policy.critic})


def _clone(job: tuple[BabyAIParams, Path, Path, int]) -> float:
    from safetensors.torch import save_model

    params, folder, out, s = job
    policy = _policy(params, None, params.seed + s)
    with np.load(folder / "demonstrations.npz") as kept:
        observation, action = kept["observation"], kept["action"]
    done = clone(policy, observation, action, np.random.default_rng([params.seed, s, 0]), epochs=params.epochs)
    save_model(_both(policy), str(out / f"pretrained.{s}.safetensors"))
    return done.accuracy


def _tune(job: tuple[BabyAIParams, Path, str, int]) -> int:
    from safetensors.torch import save_model

    params, out, arm, s = job
    policy = _policy(params, out / f"pretrained.{s}.safetensors")
    rng = np.random.default_rng([params.seed, s, crc32(arm.encode())])
    taken = fine_tune(policy, _worlds(params), params.configs, params.arms[arm], params.env_steps, rng)
    save_model(_both(policy), str(out / f"{arm}.{s}.safetensors"))
    return taken


def _attempt(job: tuple[BabyAIParams, Path, str, int]) -> Attempts:
    params, folder, arm, s = job
    policy = _policy(params, folder / f"{arm}.{s}.safetensors")
    return attempts(_worlds(params), policy.behaviour, params.configs, params.tries, np.random.default_rng([params.seed, 99, s]))
