"""Images with missing pixels: what is observed, and latent coordinates to start from, for reconstruction by a latent-variable model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.common.formats import read_parquet, write_parquet

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MaskedImages:
    """Images of which only some pixels may be looked at.

    Attributes:
        images: all pixels (n, p), shifted and scaled with mean and standard deviation of the observed ones.
        observed: which of them a method may see, (n, p).
        latents: starting points in latent space (n, q), standardised.
        mean: mean of the observed pixels in original units.
        sd: their standard deviation in original units.
    """

    images: Floats
    observed: NDArray[np.bool_]
    latents: Floats
    mean: float
    sd: float


def mask_images(images: NDArray[Any], share: float, latent: int, rng: np.random.Generator) -> MaskedImages:
    """Hide the same number of random pixels in every image, and place the images in latent space by what is left.

    The starting points are the first principal components of the images with hidden pixels set to that pixel's mean over the images
    that show it (to the overall mean where none does).

    Args:
        images: (n, p).
        share: share of pixels that is hidden, in (0, 1); at least one stays and at least one goes.
        latent: coordinates per image, at most min(n, p).
        rng: source of randomness.

    Raises:
        ValueError: for a share outside (0, 1), too few images for the coordinates, or observed pixels that are all equal.

    >>> masked = mask_images(np.arange(32.0).reshape(4, 8), 0.75, 2, np.random.default_rng(0))
    >>> masked.observed.sum(axis=1).tolist(), masked.latents.shape
    ([2, 2, 2, 2], (4, 2))
    """
    from sklearn.decomposition import PCA
    from threadpoolctl import threadpool_limits

    if not 0.0 < share < 1.0:
        raise ValueError(f"share must lie in (0, 1), got {share}")
    n, pixels = images.shape
    if not 1 <= latent <= min(n, pixels):
        raise ValueError(f"latent must lie in 1..{min(n, pixels)} with images {images.shape}, got {latent}")
    hidden = min(max(round(share * pixels), 1), pixels - 1)
    observed = np.argsort(rng.random((n, pixels)), axis=1) >= hidden
    seen = images[observed]
    mean, sd = float(seen.mean()), float(seen.std())
    if not sd > 0:
        raise ValueError(f"all {seen.size} observed pixels are equal to {mean}; nothing to reconstruct")
    scaled = (images - mean) / sd
    counts = observed.sum(axis=0)
    fill = np.where(observed, scaled, 0.0).sum(axis=0) / np.maximum(counts, 1)  # overall mean is 0 where no image shows the pixel
    with threadpool_limits(1):
        latents = PCA(latent, svd_solver="full").fit_transform(np.where(observed, scaled, fill))
    latents = latents / np.where(latents.std(axis=0) > 1e-12, latents.std(axis=0), np.inf)
    return MaskedImages(scaled, observed, latents, mean, sd)


def save_masked(path: Path, masked: MaskedImages) -> None:
    """Write as Parquet: a row per image, columns `p_*` (pixels), `o_*` (observed), `l_*` (latents), `mean` and `sd`."""
    import pandas as pd

    parts = {"p": masked.images, "o": masked.observed, "l": masked.latents}
    columns: dict[str, Any] = {f"{letter}_{i}": part[:, i] for letter, part in parts.items() for i in range(part.shape[1])}
    write_parquet(path, pd.DataFrame(columns | {"mean": masked.mean, "sd": masked.sd}))


def load_masked(path: Path) -> MaskedImages:
    """What `save_masked` wrote."""
    frame = read_parquet(path)

    def part(letter: str) -> NDArray[Any]:
        return frame[[c for c in frame.columns if c.startswith(f"{letter}_")]].to_numpy()

    return MaskedImages(part("p"), part("o"), part("l"), float(frame["mean"].iloc[0]), float(frame["sd"].iloc[0]))
