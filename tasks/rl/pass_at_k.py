"""pass@k: the chance that at least one of k attempts succeeds, estimated without bias from n attempts (Chen et al., 2021)."""

from __future__ import annotations

import numpy as np


def pass_at_k(successes: np.ndarray, attempts: int, k: int) -> np.ndarray:
    """1 - C(n - c, k) / C(n, k) for c successes in n attempts, one number per task.

    Args:
        successes: c, any shape.
        attempts: n.
        k: attempts that are allowed, 1..n.

    Raises:
        ValueError: for k outside 1..n, or c outside 0..n.

    Example:
        >>> pass_at_k(np.array([0, 1, 4]), 4, 2).tolist()
        [0.0, 0.5, 1.0]
    """
    c = np.asarray(successes)
    if not 1 <= k <= attempts:
        raise ValueError(f"k must lie in 1..{attempts} (attempts), got {k}")
    if c.size and not (c.min() >= 0 and c.max() <= attempts):
        raise ValueError(f"successes must lie in 0..{attempts}, got {c.min()}..{c.max()}")
    # C(n - c, k) / C(n, k) = prod_{i < k} (n - c - i) / (n - i)
    i = np.arange(k)
    return np.asarray(1.0 - np.prod(np.clip(attempts - c[..., None] - i, 0, None) / (attempts - i), -1))
