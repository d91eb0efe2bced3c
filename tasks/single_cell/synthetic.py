"""Cells of a low-rank factor model whose truth is known: X = U V^T + noise, two Gaussian classes in the latent space.

Five setups after Meier et al. (2026, DICE), section on synthetic data; the reference is always the matched one (setup 5 has gene-wise
noise in both), shifts hit the target alone:

1. matched; 2. target noise times 3; 3. target noise Student t(3); 4. heavy-tailed target latents, t(4), and noise times 3;
5. a noise level of its own for every gene, equal in reference and target.

Setups share their random numbers: with one seed, setups 1-4 have the very same reference, and all five the same classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Labels = NDArray[np.int64]

SETUPS: dict[int, str] = {1: "matched", 2: "noisier target", 3: "heavy-tailed noise", 4: "heavy-tailed latents", 5: "gene-wise noise"}
NOISE_FACTOR = {1: 1.0, 2: 3.0, 3: 1.0, 4: 3.0, 5: 1.0}
NOISE_FREEDOM, LATENT_FREEDOM = 3, 4


@dataclass(frozen=True)
class FactorCohort:
    """A reference (n_r cells) and a target (n_t cells) of the factor model in d genes and k latent dimensions.

    Attributes:
        reference: expression, (n_r, d).
        target: expression, (n_t, d).
        labels_reference: class of each reference cell, (n_r,).
        labels_target: class of each target cell, (n_t,).
        latents_reference: U of the reference, (n_r, k).
        latents_target: U of the target, (n_t, k).
        loadings: V with orthonormal columns, (d, k).
        class_means: mean of U in each class, (2, k).
        latent_sd: standard deviation S of U within a class, in every direction.
        noise_sd_reference: standard deviation of the noise per gene, (d,).
        noise_sd_target: the same for the target; sqrt(3) sigma under t(3) noise, which is not rescaled.
    """

    reference: Floats32
    target: Floats32
    labels_reference: Labels
    labels_target: Labels
    latents_reference: Floats
    latents_target: Floats
    loadings: Floats
    class_means: Floats
    latent_sd: float
    noise_sd_reference: Floats
    noise_sd_target: Floats

    @property
    def signal_target(self) -> Floats32:
        """U V^T of the target, without noise, (n_t, d)."""
        return np.asarray(self.latents_target @ self.loadings.T, dtype=np.float32)

    def oracle_target(self) -> Floats:
        """Best possible latents of the target, (n_t, k): `latent_posterior_mean` under the true parameters.

        Exact in setups 1, 2 and 5. In 3 and 4 it is what somebody would compute who knows every mean and variance and takes all
        laws for Gaussian.
        """
        return latent_posterior_mean(self.target, self.loadings, self.noise_sd_target, self.class_means, self.latent_sd)


def simulate(
    setup: int,
    n_reference: int = 2000,
    n_target: int = 600,
    seed: int = 0,
    *,
    genes: int = 2000,
    latents: int = 15,
    radius: float = 6.0,
    latent_sd: float = 2.0,
    noise_sd: float = 1.0,
) -> FactorCohort:
    """Draw a cohort of one setup.

    V is the Q of a Gaussian (d, k) matrix; class c has mean `radius` times a random unit vector; U = mean + `latent_sd` xi;
    X = U V^T + sd_g eps, with sd_g = `noise_sd`, or `noise_sd` exp(N(0, 1)) per gene in setup 5.

    Args:
        setup: one of `SETUPS`.
        n_reference: reference cells, >= 2.
        n_target: target cells, >= 2.
        seed: >= 0.
        genes: d.
        latents: k <= d.
        radius: distance of each class mean from 0.
        latent_sd: S > 0.
        noise_sd: sigma >= 0 of the reference.

    Raises:
        ValueError: for an unknown setup or impossible sizes.

    Example:
        >>> cohort = simulate(1, 300, 100, seed=0, genes=50, latents=3)
        >>> cohort.reference.shape, cohort.loadings.shape
        ((300, 50), (50, 3))
        >>> noisier = simulate(2, 300, 100, seed=0, genes=50, latents=3)
        >>> bool((noisier.reference == cohort.reference).all()), float(noisier.noise_sd_target[0])
        (True, 3.0)
    """
    if setup not in SETUPS:
        raise ValueError(f"setup must be one of {sorted(SETUPS)}, got {setup}")
    for name, value, least in (("n_reference", n_reference, 2), ("n_target", n_target, 2), ("genes", genes, 1), ("seed", seed, 0)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if not 1 <= latents <= genes:
        raise ValueError(f"latents must lie in 1..genes = {genes}, got {latents}")
    if latent_sd <= 0 or noise_sd < 0:
        raise ValueError(f"need latent_sd > 0 and noise_sd >= 0, got {latent_sd} and {noise_sd}")

    shape = np.random.default_rng([seed, 0])
    loadings = np.linalg.qr(shape.standard_normal((genes, latents)))[0]  # (d, k)
    directions = shape.standard_normal((2, latents))
    means = radius * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    noise = np.full(genes, noise_sd)
    if setup == 5:
        noise *= np.exp(np.random.default_rng([seed, 3]).standard_normal(genes))

    def cells(count: int, stream: int, shifted: bool) -> tuple[Floats32, Labels, Floats, Floats]:
        rng = np.random.default_rng([seed, stream])
        labels = rng.integers(0, 2, count)
        xi = rng.standard_normal((count, latents))
        eps = rng.standard_normal((count, genes), dtype=np.float32)
        sd = noise.copy()
        if shifted and setup == 4:
            xi = rng.standard_t(LATENT_FREEDOM, (count, latents)) / np.sqrt(LATENT_FREEDOM / (LATENT_FREEDOM - 2))
        if shifted and setup == 3:
            # A Student t is a normal over a chi; the normal part is that of the other setups.
            eps /= np.sqrt(rng.chisquare(NOISE_FREEDOM, (count, genes)) / NOISE_FREEDOM).astype(np.float32)
        if shifted:
            sd *= NOISE_FACTOR[setup]
        u = means[labels] + latent_sd * xi
        eps *= sd.astype(np.float32)
        eps += (u @ loadings.T).astype(np.float32)
        true_sd = sd * np.sqrt(NOISE_FREEDOM / (NOISE_FREEDOM - 2)) if shifted and setup == 3 else sd
        return eps, labels, u, true_sd

    reference, labels_r, u_r, sd_r = cells(n_reference, 1, shifted=False)
    target, labels_t, u_t, sd_t = cells(n_target, 2, shifted=True)
    return FactorCohort(reference, target, labels_r, labels_t, u_r, u_t, loadings, means, latent_sd, sd_r, sd_t)


def latent_posterior_mean(
    x: ArrayLike, loadings: ArrayLike, noise_sd: ArrayLike, class_means: ArrayLike, latent_sd: float, weights: ArrayLike | None = None
) -> Floats:
    """Posterior mean of U given X, closed form, for X = U V^T + N(0, diag(sd^2)) and U a mixture of N(m_c, S^2 I).

    With P = V^T Sigma^-1 V, class c alone would give (P + I/S^2)^-1 (V^T Sigma^-1 x + m_c/S^2); its weight is the share of
    class c in the density of the generalised least-squares estimate of U, which is sufficient.

    Args:
        x: expression, (n, d).
        loadings: V of full column rank, not necessarily orthonormal, (d, k).
        noise_sd: noise standard deviation per gene > 0, (d,) or a number.
        class_means: m_c, (C, k).
        latent_sd: S > 0.
        weights: class probabilities, (C,); equal by default.

    Returns:
        posterior means, (n, k).

    Raises:
        ValueError: if a noise level or `latent_sd` is not positive.

    Example:
        >>> latent_posterior_mean([[2.0]], [[1.0]], 1.0, [[0.0]], 1.0).tolist()  # half way between data and prior
        [[1.0]]
    """
    from scipy.special import softmax

    v, m = np.asarray(loadings, float), np.asarray(class_means, float)
    data = np.asarray(x, float)
    sd = np.broadcast_to(np.asarray(noise_sd, float), (v.shape[0],))
    if (sd <= 0).any() or latent_sd <= 0:
        raise ValueError(f"noise_sd and latent_sd must be positive, got a smallest of {sd.min()} and {latent_sd}")
    prior = np.full(len(m), 1 / len(m)) if weights is None else np.asarray(weights, float)
    scaled = v / sd[:, None] ** 2  # Sigma^-1 V, (d, k)
    precision = v.T @ scaled
    pull = data @ scaled  # (n, k)
    estimate = np.linalg.solve(precision, pull.T).T
    spread = np.linalg.inv(precision) + latent_sd**2 * np.eye(len(precision))  # covariance of the estimate within a class
    gaps = estimate[:, None, :] - m[None]  # (n, C, k)
    log_odds = np.log(prior) - 0.5 * np.einsum("nck,kl,ncl->nc", gaps, np.linalg.inv(spread), gaps)
    mean_prior = softmax(log_odds, axis=1) @ m  # (n, k)
    both = precision + np.eye(len(precision)) / latent_sd**2
    return np.asarray(np.linalg.solve(both, (pull + mean_prior / latent_sd**2).T).T)
