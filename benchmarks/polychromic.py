"""Environment steps per second of the batched twin against minigrid itself, the same episodes in one process; medians."""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from tasks.gridworld.layouts import Level, read_layouts
from tasks.gridworld.real_worlds import RealWorlds
from tasks.gridworld.static_worlds import StaticWorlds
from tasks.rl.attempts import attempt
from tasks.rl.rollouts import World


def walk(seen: np.ndarray) -> np.ndarray:
    """A policy that mostly walks."""
    return np.tile(np.float32([[0.2, 0.2, 0.6]]), (len(seen), 1))


def steps_per_second(world: World, configs: int, rounds: int, repeat: int) -> float:
    """Median over repetitions; every repetition runs the same episodes."""
    config = np.tile(np.arange(configs), rounds)
    uniforms = np.random.default_rng(0).random((world.horizon, len(config)))
    attempt(world, walk, config, uniforms)  # environment objects and tables exist from here on
    rates = []
    for _ in range(repeat):
        began = time.perf_counter()
        found = attempt(world, walk, config, uniforms)
        rates.append(found.steps / (time.perf_counter() - began))
    return statistics.median(rates)


def main() -> None:
    """Measure and print one line per level."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100, help="rounds over all configurations in the twin; minigrid runs one")
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    levels: tuple[Level, ...] = ("fourrooms", "goto")
    for level in levels:
        layouts = read_layouts(level, range(arguments.configs))
        began = time.perf_counter()
        twin = StaticWorlds(layouts)
        built = time.perf_counter() - began
        ours = steps_per_second(twin, arguments.configs, arguments.rounds, arguments.repeat)
        real = steps_per_second(RealWorlds(twin), arguments.configs, 1, arguments.repeat)
        print(f"{level}: twin {ours:12,.0f} steps/s, minigrid {real:8,.0f} steps/s, ratio {ours / real:6.0f}; tables in {built:.2f} s")


if __name__ == "__main__":
    main()
