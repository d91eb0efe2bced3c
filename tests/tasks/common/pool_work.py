"""Work for pools of processes."""

from __future__ import annotations

import os
import time

import numpy as np


def draw(seed: int) -> float:
    return float(np.random.default_rng(seed).standard_normal(1000).sum())


def late(seed: int) -> int:
    time.sleep(0.2 if seed == 0 else 0.0)
    return seed


def fail_on_two(seed: int) -> int:
    if seed == 2:
        raise ArithmeticError(f"seed {seed}")
    return seed


def process(_: int) -> int:
    return os.getpid()


def most_threads(_: int) -> int:
    """Threads that libraries loaded by this call would use."""
    import sklearn.ensemble  # noqa: F401
    import torch
    from threadpoolctl import threadpool_info

    return max([pool["num_threads"] for pool in threadpool_info()] + [torch.get_num_threads()])


def linger(_: int) -> int:
    os.write(1, f"{os.getpid()}\n".encode())
    time.sleep(60)
    return 0
