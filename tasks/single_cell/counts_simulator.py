"""Counts with realistic noise, after the idea of Splatter (Zappia, Phipson & Oshlack, 2017), written down anew and kept small.

Gene means are gamma; every group has log-normal factors on a tenth of the genes; libraries are log-normal; a gamma factor per
entry whose spread falls with the mean stands for biological variation; counts are Poisson; dropout follows a logistic curve of
the mean. Reference and target share genes and groups; they differ in cells, and the target in depth if one wants.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.common.node import Params

Floats = NDArray[np.float64]


class CountSettings(Params):
    """Settings of the simulator.

    Attributes:
        genes: number of genes.
        groups: number of cell groups, equally likely.
        mean_shape: shape of the gamma law of gene means.
        mean_rate: rate of the gamma law of gene means.
        de_share: probability that a gene is differentially expressed in a group.
        de_location: mean of the logarithm of the factor.
        de_scale: standard deviation of the logarithm of the factor; half of the factors are turned into their inverse.
        library_location: mean of the logarithm of a cell's expected total.
        library_scale: its standard deviation.
        bcv: common biological coefficient of variation; a gene of mean m has bcv (1 + 1/sqrt(m)).
        bcv_freedom: degrees of freedom of the scaled inverse chi-square spread of the coefficient over entries.
        dropout_mid: logarithm of the expected count at which half of the counts are dropped; None switches dropout off.
        dropout_slope: slope of the logistic curve, < 0: rarer counts are dropped more.
        target_depth: factor on the libraries of the target.
    """

    genes: int = 1000
    groups: int = 5
    mean_shape: float = 0.6
    mean_rate: float = 0.3
    de_share: float = 0.1
    de_location: float = 0.3
    de_scale: float = 0.6
    library_location: float = 7.5
    library_scale: float = 0.25
    bcv: float = 0.1
    bcv_freedom: float = 60.0
    dropout_mid: float | None = -1.0
    dropout_slope: float = -1.0
    target_depth: float = 0.5

    def model_post_init(self, context: object) -> None:
        """Refuse impossible values."""
        for name in ("genes", "groups"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name} must be at least 2, got {getattr(self, name)}")
        for name in ("mean_shape", "mean_rate", "bcv_freedom", "target_depth"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("de_scale", "library_scale", "bcv"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        if not 0 <= self.de_share <= 1:
            raise ValueError(f"de_share must lie in [0, 1], got {self.de_share}")
        if self.dropout_slope >= 0:
            raise ValueError(f"dropout_slope must be negative (rare counts are dropped more), got {self.dropout_slope}")


@dataclass(frozen=True)
class CountCohort:
    """Simulated counts of reference (n_r, d) and target (n_t, d), float32 whole numbers, no empty cell.

    Attributes:
        reference: counts, (n_r, d).
        target: counts, (n_t, d).
        labels_reference: group, (n_r,).
        labels_target: group, (n_t,).
        expected_reference: noise-free counts: library times the group's profile, before every kind of noise, (n_r, d).
        expected_target: the same for the target, (n_t, d).
        profiles: share of each gene in a group's expected total, rows summing to one, (groups, d).
    """

    reference: NDArray[np.float32]
    target: NDArray[np.float32]
    labels_reference: NDArray[np.int64]
    labels_target: NDArray[np.int64]
    expected_reference: NDArray[np.float32]
    expected_target: NDArray[np.float32]
    profiles: Floats


def simulate_counts(n_reference: int, n_target: int, seed: int, settings: CountSettings | None = None) -> CountCohort:
    """Draw a cohort.

    Args:
        n_reference: reference cells, >= 2.
        n_target: target cells, >= 2.
        seed: >= 0; the cells of the target do not depend on `n_reference`.
        settings: see `CountSettings`.

    Raises:
        ValueError: for impossible sizes or settings.

    Example:
        >>> cohort = simulate_counts(200, 100, seed=0, settings=CountSettings(genes=300, groups=3))
        >>> cohort.reference.shape, sorted(set(cohort.labels_target.tolist()))
        ((200, 300), [0, 1, 2])
    """
    if n_reference < 2 or n_target < 2 or seed < 0:
        raise ValueError(f"need at least 2 cells on both sides and a seed >= 0, got {n_reference}, {n_target} and {seed}")
    s = settings or CountSettings()
    profiles = group_profiles(s, np.random.default_rng([seed, 60]))
    reference, labels_r, expected_r = draw_cells(profiles, n_reference, 1.0, s, np.random.default_rng([seed, 61]))
    target, labels_t, expected_t = draw_cells(profiles, n_target, s.target_depth, s, np.random.default_rng([seed, 62]))
    return CountCohort(reference, target, labels_r, labels_t, expected_r, expected_t, profiles)


def group_profiles(settings: CountSettings, rng: np.random.Generator) -> Floats:
    """Shares of the genes in every group, (groups, d): gamma means times log-normal factors on a share of the genes."""
    s = settings
    means = rng.gamma(s.mean_shape, 1 / s.mean_rate, s.genes)
    shape = (s.groups, s.genes)
    factor = rng.lognormal(s.de_location, s.de_scale, shape)
    factor = np.where(rng.random(shape) < 0.5, factor, 1 / factor)
    factor = np.where(rng.random(shape) < s.de_share, factor, 1.0)
    profiles = means * factor
    return np.asarray(profiles / profiles.sum(axis=1, keepdims=True))


def draw_cells(
    profiles: Floats, count: int, depth: float, settings: CountSettings, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]:
    """Counts (n, d), groups (n,) and noise-free expected counts (n, d) of `count` cells."""
    s = settings
    labels = rng.integers(0, len(profiles), count)
    library = depth * rng.lognormal(s.library_location, s.library_scale, count)
    expected = library[:, None] * profiles[labels]  # (n, d)
    mean = expected
    if s.bcv > 0:
        spread = (
            s.bcv * (1 + 1 / np.sqrt(np.maximum(expected, 1e-8))) * np.sqrt(s.bcv_freedom / rng.chisquare(s.bcv_freedom, expected.shape))
        )
        shape = 1 / np.maximum(spread, 1e-8) ** 2
        mean = rng.gamma(shape, 1.0) * (expected / shape)
    counts = rng.poisson(mean)
    if s.dropout_mid is not None:
        log_mean = np.log(np.maximum(expected, 1e-30))
        dropped = rng.random(expected.shape) < 1 / (1 + np.exp(-s.dropout_slope * (log_mean - s.dropout_mid)))
        # A cell that would be left empty keeps its counts.
        dropped &= (counts * ~dropped).sum(axis=1, keepdims=True) > 0
        counts = np.where(dropped, 0, counts)
    empty = np.flatnonzero(counts.sum(axis=1) == 0)
    counts[empty, expected[empty].argmax(axis=1)] = 1
    return counts.astype(np.float32), labels, expected.astype(np.float32)
