"""Stage that reads the configurations of a level from minigrid, checks the batched twin against it, and collects demonstrations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.gridworld.demonstrations import Demonstrations, bot_paths, shortest_paths
from tasks.gridworld.layouts import Level, moved_starts, read_layouts, write_layouts
from tasks.gridworld.real_worlds import count_mismatches
from tasks.gridworld.static_worlds import StaticWorlds

TRAIN, DEMONSTRATED, UNSEEN = 0, 1000, 5000
"""First reset seed of the three kinds of configurations."""


class PrepareParams(Params):
    """Which level, and how much of it.

    Attributes:
        level: `fourrooms` or `goto`.
        configs: training configurations; also the number of unseen ones.
        demonstrated: configurations that the expert shows.
        compared: training and unseen configurations in which every state of the twin is compared with minigrid.
        horizon: steps of an episode.
        first: added to the reset seeds, so that tuning can happen on other configurations.
        seed: of moved starts and of ties between shortest paths.
    """

    level: Level = "fourrooms"
    configs: int = Field(50, ge=1, le=900)
    demonstrated: int = Field(300, ge=1, le=3900)
    compared: int = Field(2, ge=1)
    horizon: int = Field(100, ge=1)
    first: int = Field(0, ge=0)
    seed: int = Field(0, ge=0)


def prepare(params: PrepareParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `train`, `moved`, `unseen` (NPZ layouts) and `demonstrations.parquet`.

    Metrics by level: `twin.compared.<level>`, `twin.mismatches.<level>`, `expert.{steps,given_up,mean_steps}.<level>`.

    Raises:
        RuntimeError: if the twin and minigrid differ anywhere: nothing may be trained in a wrong simulator.
    """
    level = params.level
    train = read_layouts(level, [params.first + TRAIN + i for i in range(params.configs)])
    unseen = read_layouts(level, [params.first + UNSEEN + i for i in range(params.configs)])
    parts = {"train": train, "moved": moved_starts(train, np.random.default_rng([params.seed, 0])), "unseen": unseen}
    compared = mismatches = 0
    for name, layouts in log.progress(parts.items(), desc="compare with minigrid"):
        write_layouts(out / f"{name}.npz", layouts)
        if name != "moved":
            found = count_mismatches(StaticWorlds(layouts, params.horizon), np.arange(min(params.compared, params.configs)))
            compared, mismatches = compared + found[0], mismatches + found[1]
    if mismatches:
        raise RuntimeError(f"the batched twin of {level!r} differs from minigrid in {mismatches} of {compared} steps; do not train in it")
    shown = read_layouts(level, [params.first + DEMONSTRATED + i for i in range(params.demonstrated)])
    if level == "fourrooms":
        demos = shortest_paths(StaticWorlds(shown, params.horizon), np.random.default_rng([params.seed, 1]))
    else:
        demos = bot_paths(shown, params.horizon)
    write_demonstrations(out / "demonstrations.parquet", demos)
    return {
        f"twin.compared.{level}": float(compared),
        f"twin.mismatches.{level}": float(mismatches),
        f"expert.steps.{level}": float(len(demos.action)),
        f"expert.given_up.{level}": float(demos.given_up),
        f"expert.mean_steps.{level}": len(demos.action) / max(params.demonstrated - demos.given_up, 1),
    }


def write_demonstrations(path: Path, demos: Demonstrations) -> None:
    """Write one row per step."""
    import pandas as pd

    views = pd.DataFrame(demos.view, columns=[f"cell_{i}" for i in range(demos.view.shape[1] - 1)] + ["direction"])
    write_parquet(path, views.assign(action=demos.action, layout=demos.layout))
