"""A corridor of cells for the tests: action 1 goes right, action 0 left; the right end succeeds. The place is the third that one is in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tasks.rl.networks import TablePolicy, generator, mlp


@dataclass
class Cells:
    config: np.ndarray
    at: np.ndarray

    def take(self, rows):
        return Cells(self.config[rows], self.at[rows])


class Corridor:
    actions = 2

    def __init__(self, length=9, horizon=20):
        self.length, self.horizon, self.stepped = length, horizon, 0

    def reset(self, config):
        return Cells(np.asarray(config), np.asarray(config) % 3)

    def observe(self, state):
        return state.at

    def place(self, state):
        return state.at * 3 // self.length

    def step(self, state, action):
        self.stepped += len(action)
        at = np.clip(state.at + 2 * action - 1, 0, self.length - 1)
        return Cells(state.config, at), at == self.length - 1

    def save(self, state, rows):
        return state.take(rows)

    def put(self, state, rows, part):
        at = state.at.copy()
        at[rows] = part.at
        return Cells(state.config, at)


def policy(length=9, seed=0):
    return TablePolicy(torch.eye(length), mlp([length, 8, 2], generator(seed, 0)), mlp([length, 8, 1], generator(seed, 1)))


def fair(observation):
    return np.full((len(observation), 2), 0.5, np.float32)
