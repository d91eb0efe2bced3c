"""Stage that fine-tunes the pretrained policies of a level, one arm after the other, every arm with the same environment steps."""

from __future__ import annotations

import time
from pathlib import Path
from zlib import crc32

import numpy as np
from pydantic import Field

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.gridworld.layouts import Level
from tasks.gridworld.policies import load_policy, load_worlds, make_policy, save_policy
from tasks.rl.attempts import attempts
from tasks.rl.fine_tuning import Arm, fine_tune

Row = tuple[str, int, int, str, float]
"""Arm, seed, environment steps, name, value."""


class TuneParams(Params):
    """Arms, budget and repetitions.

    Attributes:
        level: `fourrooms` or `goto`.
        arms: by name.
        env_steps: budget of every arm and seed, seed episodes and vines counted alike.
        seeds: pretrained policies to start from.
        hidden: as the pretrained policies.
        horizon: steps of an episode.
        looks: how often the learning curves look at the policy.
        tries: attempts per configuration at a look; these steps are not the arm's.
        seed: of everything random.
    """

    level: Level = "fourrooms"
    arms: dict[str, Arm] = Field({"ppo": Arm(episodes=272), "poly": Arm(objective="polychromic")}, min_length=1)
    env_steps: int = Field(1_000_000, ge=1)
    seeds: int = Field(3, ge=1)
    hidden: tuple[int, ...] = Field((64, 64), min_length=1)
    horizon: int = Field(100, ge=1)
    looks: int = Field(20, ge=1)
    tries: int = Field(8, ge=4)
    seed: int = Field(0, ge=0)


def train(params: TuneParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<arm>.<seed>.safetensors`, and `learning.parquet` (arm, seed, env_steps, name, value).

    Metrics: `<arm>.{env_steps,updates}.<level>`, what every arm has used; for arms with sets also `<arm>.silent_share.<level>`, the mean
    share of rollout states that teach nothing, and `<arm>.skipped_states.<level>`, those that too short an episode had no room for.
    """
    prepared = next(name for name in inputs if name.startswith("prepare"))
    warm = next(name for name in inputs if name.startswith("warmstart"))
    jobs = [(params, inputs[prepared], inputs[warm], out, arm, s) for arm in params.arms for s in range(params.seeds)]
    done = list(log.progress(map_parallel(_tune, jobs), total=len(jobs), desc="fine-tune"))
    metrics: Metrics = {}
    for arm in params.arms:
        own = [one for job, one in zip(jobs, done, strict=True) if job[4] == arm]
        for name in own[0][0]:
            metrics |= summarise(f"{arm}.{name}.{params.level}", [told[name] for told, _, _ in own])
        log.timing(**{f"{arm}_env_steps_per_s": float(np.mean([told["env_steps"] / seconds for told, _, seconds in own]))})
        for steps, name, value in mean_curves([row for _, rows, _ in own for row in rows], params.env_steps // params.looks):
            log.history(steps, **{f"{arm}.{name}": value})
    write_curves(out / "learning.parquet", [row for _, rows, _ in done for row in rows])
    return metrics


def mean_curves(rows: list[Row], grid: int) -> list[tuple[int, str, float]]:
    """Means over seeds at multiples of `grid` steps; seeds look at slightly different steps, a batch being whole."""
    cells: dict[tuple[int, str], list[float]] = {}
    for _, _, steps, name, value in rows:
        cells.setdefault((round(steps / grid) * grid, name), []).append(value)
    return [(steps, name, float(np.mean(values))) for (steps, name), values in sorted(cells.items())]


def write_curves(path: Path, rows: list[Row]) -> None:
    """Write learning curves in long form."""
    import pandas as pd

    write_parquet(path, pd.DataFrame(rows, columns=["arm", "seed", "env_steps", "name", "value"]))


def _tune(job: tuple[TuneParams, Path, Path, Path, str, int]) -> tuple[dict[str, float], list[Row], float]:
    params, prepared, warm, out, name, s = job
    worlds = load_worlds(prepared / "train.npz", params.horizon)
    policy = load_policy(warm / f"{s}.safetensors", make_policy(worlds, params.hidden, 0))
    configs = len(worlds.layouts)
    rows: list[Row] = []
    silent: list[float] = []
    skipped: list[float] = []
    updates, spacing = 0.0, params.env_steps / params.looks

    def look(taken: int, told: dict[str, float]) -> None:
        nonlocal updates
        updates += told.get("updates", 0.0)
        if "silent_share" in told:
            silent.append(told["silent_share"])
            skipped.append(told["skipped"])
        if taken == 0 or taken >= (len(rows) // 4) * spacing:
            eyes = np.random.default_rng([params.seed, s, 7, len(rows)])
            tried = attempts(worlds, policy.onlooker().behaviour, configs, params.tries, eyes)
            seen = {
                "success": tried.pass_at(1),
                f"pass{params.tries}": tried.pass_at(params.tries),
                "diversity4": tried.diversity(),
                "entropy_nats": float(tried.entropy.mean()),
            }
            rows.extend((name, s, taken, key, value) for key, value in seen.items())

    began = time.process_time()
    look(0, {})
    rng = np.random.default_rng([params.seed, s, crc32(name.encode())])
    taken = fine_tune(policy, worlds, configs, params.arms[name], params.env_steps, rng, look)
    save_policy(out / f"{name}.{s}.safetensors", policy)
    told = {"env_steps": float(taken), "updates": updates}
    if silent:
        told |= {"silent_share": float(np.mean(silent)), "skipped_states": float(np.sum(skipped))}
    return told, rows, time.process_time() - began
