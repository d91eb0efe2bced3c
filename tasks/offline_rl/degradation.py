"""Degradation operators: how PREFORL makes failures out of a successful segment (eq. 4 and 5 of the paper).

Action degradation adds noise to the actions, which makes failures outside the data's support. State degradation looks up the nearest
state of a failed trajectory and borrows the action that was taken there, which makes failures inside it. Both keep the states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def degrade_actions(
    action: torch.Tensor, sigma: torch.Tensor | float, noise: torch.Tensor, clip: tuple[float, float] | None = None
) -> torch.Tensor:
    """a- = a + sigma noise (eq. 4).

    Args:
        action: (..., a).
        sigma: standard deviation, at least 0, broadcast.
        noise: standard normal, fresh at every use, (..., a).
        clip: ends of the action box, or None. Clipping leaves saturated actions as they are, which removes the negative there.

    Raises:
        ValueError: for a negative sigma or noise of another shape.

    Example:
        >>> import torch
        >>> degrade_actions(torch.zeros(1, 2), 0.5, torch.ones(1, 2)).tolist()
        [[0.5, 0.5]]
    """
    lowest = float(sigma) if isinstance(sigma, int | float) else float(sigma.min())
    if not lowest >= 0:
        raise ValueError(f"sigma must be at least 0, got {lowest}")
    if noise.shape != action.shape:
        raise ValueError(f"noise must have the actions' shape {tuple(action.shape)}, got {tuple(noise.shape)}")
    moved = action + sigma * noise
    return moved if clip is None else moved.clamp(*clip)


def nearest_failures(queries: np.ndarray, failures: np.ndarray) -> np.ndarray:
    """Index of the nearest failed state for every query (eq. 5), Euclidean, ties to the lowest index.

    Args:
        queries: standardised states of D+, (n, d).
        failures: standardised states of D-, (m, d), m >= 1.

    Returns:
        (n,) indices into `failures`.

    Raises:
        ValueError: for other dimensions or no failures.

    Example:
        >>> nearest_failures(np.array([[0.9]]), np.array([[0.0], [1.0], [1.0]])).tolist()
        [1]
    """
    from scipy.spatial import cKDTree

    if queries.ndim != 2 or failures.ndim != 2 or len(failures) < 1 or queries.shape[1] != failures.shape[1]:
        raise ValueError(f"needs states (n, d) and (m, d) with m >= 1, got {queries.shape} and {failures.shape}")
    # The tree breaks ties arbitrarily: equal states are one point, and queries with two nearest points are searched in full.
    distinct, first = np.unique(failures, axis=0, return_index=True)
    distance, found = cKDTree(distinct).query(queries, k=min(2, len(distinct)))
    if len(distinct) == 1:
        return np.full(len(queries), first[0])
    chosen = first[found[:, 0]]
    for row in np.flatnonzero(distance[:, 1] <= distance[:, 0] * (1 + 1e-12)):
        chosen[row] = int(((failures - queries[row]) ** 2).sum(1).argmin())
    return np.asarray(chosen)


def nearest_failures_chunked(queries: np.ndarray, failures: np.ndarray, device: str = "cpu", chunk: int = 4096) -> np.ndarray:
    """`nearest_failures` by exact brute force on a device, for millions of states of many dimensions, where trees are slow.

    Args:
        queries: (n, d).
        failures: (m, d), m >= 1.
        device: torch device.
        chunk: failures per block; memory is chunk^2 numbers.
    """
    import torch

    if len(failures) < 1 or queries.shape[1] != failures.shape[1]:
        raise ValueError(f"needs states (n, d) and (m, d) with m >= 1, got {queries.shape} and {failures.shape}")
    # Double precision: |x - y|^2 by the expansion loses the nearest of close states in single.
    known = torch.as_tensor(failures, dtype=torch.float64, device=device)
    norms = known.square().sum(1)
    out = []
    for at in range(0, len(queries), chunk):
        block = torch.as_tensor(queries[at : at + chunk], dtype=torch.float64, device=device)
        best = torch.full((len(block),), np.inf, dtype=torch.float64, device=device)
        index = torch.zeros(len(block), dtype=torch.long, device=device)
        for low in range(0, len(known), chunk):
            distances = norms[low : low + chunk] - 2 * block @ known[low : low + chunk].T
            value, where = distances.min(dim=1)
            better = value < best
            best, index = torch.where(better, value, best), torch.where(better, where + low, index)
        out.append(index.cpu().numpy())
    return np.concatenate(out)
