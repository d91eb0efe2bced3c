"""scVI (Lopez et al., 2018) as a baseline: trained on the reference's counts, applied to the target. Needs the optional scvi-tools."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.common.assets import AssetMissing

INSTALL = "pip install 'scvi-tools>=1.3'"
LATENTS = (10, 25)
"""Sizes of the latent space in the published table."""


def embed(
    reference_counts: Any, target_counts: Any, *, latents: int = 10, seed: int = 0, epochs: int | None = None, device: str = "auto"
) -> NDArray[np.float64]:
    """Latent means of the target under a model trained on the reference alone.

    Args:
        reference_counts: raw counts, dense or sparse, (n_r, d).
        target_counts: raw counts of the same genes, (n_t, d).
        latents: size of the latent space, >= 1.
        seed: of the training; set inside a fork of torch's and numpy's global generators, which scvi-tools use.
        epochs: by default what scvi-tools choose for the number of cells.
        device: accelerator by Lightning's name: `auto`, `cpu`, `gpu`.

    Returns:
        (n_t, latents).

    Raises:
        AssetMissing: if scvi-tools is not installed, with the command.
        ValueError: for matrices of different genes or `latents` < 1.
    """
    if latents < 1:
        raise ValueError(f"latents must be at least 1, got {latents}")
    if reference_counts.shape[1] != target_counts.shape[1]:
        raise ValueError(f"reference and target need the same genes, got {reference_counts.shape[1]} and {target_counts.shape[1]}")
    try:
        scvi: Any = import_module("scvi")
    except ImportError:
        raise AssetMissing("scvi-tools", INSTALL) from None
    import torch
    from anndata import AnnData

    reference, target = AnnData(reference_counts), AnnData(target_counts)
    legacy = np.random.get_state()
    with torch.random.fork_rng():
        try:
            scvi.settings.seed = seed
            scvi.model.SCVI.setup_anndata(reference)
            model = scvi.model.SCVI(reference, n_latent=latents)
            model.train(max_epochs=epochs, accelerator=device, enable_progress_bar=False)
            return np.asarray(model.get_latent_representation(target), dtype=float)
        finally:
            np.random.set_state(legacy)
