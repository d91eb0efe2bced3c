"""Policies for the levels of this folder: small perceptrons over one-hot views, made from a seed and kept as safetensors."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch

from tasks.gridworld.layouts import load_layouts
from tasks.gridworld.static_worlds import StaticWorlds, one_hot_views
from tasks.rl.networks import TablePolicy, generator, mlp

KINDS = {"fourrooms": 4, "goto": 6}
"""Kinds of cells that a level shows: unseen, empty, wall, target; in `goto` also door and other object."""


def make_policy(worlds: StaticWorlds, hidden: tuple[int, ...], seed: int) -> TablePolicy:
    """Actor and critic, untrained.

    Args:
        worlds: whose views are the inputs.
        hidden: widths of the hidden layers, of both.
        seed: of the weights.
    """
    features = torch.from_numpy(one_hot_views(worlds.views, KINDS[worlds.layouts.level]))
    widths = [features.shape[1], *hidden]
    actor = mlp([*widths, worlds.actions], generator(seed, 0), last_gain=0.1)
    return TablePolicy(features, actor, mlp([*widths, 1], generator(seed, 1)))


@lru_cache(maxsize=8)
def load_worlds(path: Path, horizon: int) -> StaticWorlds:
    """The tables of a file of layouts, made once in a process."""
    return StaticWorlds(load_layouts(path), horizon)


def save_policy(path: Path, policy: TablePolicy) -> None:
    """Write the weights of actor and critic."""
    from safetensors.torch import save_file

    networks = {"actor": policy.actor, "critic": policy.critic}
    save_file({f"{name}.{key}": value for name, n in networks.items() for key, value in n.state_dict().items()}, path)


def load_policy(path: Path, policy: TablePolicy) -> TablePolicy:
    """Fill a policy with weights that `save_policy` wrote."""
    from safetensors.torch import load_file

    kept = load_file(path)
    for name, network in (("actor", policy.actor), ("critic", policy.critic)):
        network.load_state_dict({key.removeprefix(f"{name}."): value for key, value in kept.items() if key.startswith(f"{name}.")})
    policy.refresh()
    return policy
