"""Stage that pretrains a policy on demonstrations, once per seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from pydantic import Field

from tasks.common.formats import read_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.gridworld.layouts import Level
from tasks.gridworld.policies import KINDS, load_worlds, make_policy, save_policy
from tasks.gridworld.static_worlds import one_hot_views
from tasks.rl.attempts import attempts
from tasks.rl.behaviour_cloning import clone
from tasks.rl.networks import TablePolicy


class CloneParams(Params):
    """How a policy imitates the expert.

    Attributes:
        level: `fourrooms` or `goto`.
        seeds: policies, each with weights, split and order of its own.
        hidden: widths of the hidden layers of actor and critic.
        epochs: passes over the demonstrations.
        batch: steps per update.
        rate: of Adam.
        entropy: bonus.
        held_out: share of steps that only judge.
        horizon: steps of an episode.
        seed: of everything random.
    """

    level: Level = "fourrooms"
    seeds: int = Field(3, ge=1)
    hidden: tuple[int, ...] = Field((64, 64), min_length=1)
    epochs: int = Field(15, ge=1)
    batch: int = Field(256, ge=1)
    rate: float = Field(1e-3, gt=0.0)
    entropy: float = Field(0.01, ge=0.0)
    held_out: float = Field(0.2, gt=0.0, lt=1.0)
    horizon: int = Field(100, ge=1)
    seed: int = Field(0, ge=0)


def warmstart(params: CloneParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<seed>.safetensors`, a pretrained actor and a fresh critic for every seed.

    Metrics: `pretrained.{imitation,start_success}.<level>`: agreement with the expert on held-out steps, success in the training
    configurations.
    """
    (need,) = inputs
    jobs = [(params, inputs[need], s, out / f"{s}.safetensors") for s in range(params.seeds)]
    found = list(log.progress(map_parallel(_clone, jobs), total=len(jobs), desc="clone"))
    for step in range(0, len(found[0][2]), 10):
        log.history(step, loss=float(np.mean([losses[step] for _, _, losses in found])))
    imitation, success, _ = zip(*found, strict=True)
    metrics = summarise(f"pretrained.imitation.{params.level}", imitation)
    return metrics | summarise(f"pretrained.start_success.{params.level}", success)


def _clone(job: tuple[CloneParams, Path, int, Path]) -> tuple[float, float, np.ndarray]:
    params, folder, s, target = job
    worlds = load_worlds(folder / "train.npz", params.horizon)
    policy = make_policy(worlds, params.hidden, params.seed + s)
    shown = read_parquet(folder / "demonstrations.parquet")
    views = shown.drop(columns=["action", "layout"]).to_numpy(np.uint8)
    features = torch.from_numpy(one_hot_views(views, KINDS[params.level]))
    rng = np.random.default_rng([params.seed, s, 0])
    student = TablePolicy(features, policy.actor, policy.critic)
    done = clone(
        student,
        np.arange(len(views)),
        shown["action"].to_numpy(np.int64),
        rng,
        epochs=params.epochs,
        batch=params.batch,
        rate=params.rate,
        entropy=params.entropy,
        held_out=params.held_out,
    )
    policy.refresh()
    save_policy(target, policy)
    tried = attempts(worlds, policy.behaviour, len(worlds.layouts), 20, np.random.default_rng([params.seed, s, 1]))
    return done.accuracy, tried.pass_at(1), done.losses
