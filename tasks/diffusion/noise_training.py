"""Training a denoiser by noise prediction (Ho et al., 2020, equation 14), with averaged weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from tasks.common.node import Params
from tasks.diffusion.schedules import Floats, Schedule, signal_levels
from tasks.training.averaging import MovingAverage
from tasks.training.loop import descend

if TYPE_CHECKING:
    import torch

    from tasks.diffusion.denoiser import TabularDenoiser


class DenoiserParams(Params):
    """A denoiser and how it is trained.

    Attributes:
        hidden: width of the network.
        blocks: its residual blocks.
        steps: of AdamW; the learning rate falls to 0 over them (cosine).
        batch: rows per step.
        rate: first learning rate.
        weight_decay: of AdamW.
        ema: decay of the averaged weights, which are the ones that are kept.
        levels: noise levels that are trained on, drawn uniformly.
        schedule: of the noise.
    """

    hidden: int = Field(160, ge=1)
    blocks: int = Field(2, ge=1)
    steps: int = Field(2000, ge=1)
    batch: int = Field(256, ge=1)
    rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    ema: float = Field(0.999, ge=0, lt=1)
    levels: int = Field(256, gt=20)
    schedule: Schedule = "linear"


def train_denoiser(
    rows: Floats | np.ndarray,
    params: DenoiserParams,
    seed: int,
    *,
    device: str = "cpu",
    after: Callable[[int, float], None] | None = None,
) -> tuple[TabularDenoiser, np.ndarray]:
    """Fit a denoiser to rows of about unit scale.

    Args:
        rows: clean vectors (n, k), finite.
        params: network and optimisation.
        seed: of initial weights, batches, levels and noise.
        device: where; random numbers are drawn on the CPU, so that devices agree up to rounding.
        after: called with (step, loss).

    Returns:
        The denoiser with averaged weights, in evaluation mode, and the loss of every step (steps,).

    Raises:
        ValueError: if rows are not a finite matrix of at least two rows.

    >>> rows = np.random.default_rng(0).standard_normal((64, 2))
    >>> model, losses = train_denoiser(rows, DenoiserParams(hidden=8, steps=5), seed=0)
    >>> losses.shape
    (5,)
    """
    import torch

    from tasks.diffusion.denoiser import TabularDenoiser

    values = np.asarray(rows, dtype=float)
    if values.ndim != 2 or values.shape[0] < 2 or not np.isfinite(values).all():
        raise ValueError(f"rows must be a finite matrix of at least two rows, got shape {values.shape}")
    generator = torch.Generator().manual_seed(seed)
    clean = torch.as_tensor(values, dtype=torch.float32, device=device)
    model = TabularDenoiser(values.shape[1], params.hidden, params.blocks, generator=generator).to(device)
    abar = torch.as_tensor(signal_levels(params.schedule, params.levels), dtype=torch.float32)

    def loss(step: int) -> torch.Tensor:
        picked = torch.randint(len(clean), (params.batch,), generator=generator).to(device)
        level = abar[torch.randint(params.levels, (params.batch,), generator=generator)].to(device)
        noise = torch.randn((params.batch, clean.shape[1]), generator=generator).to(device)
        error: torch.Tensor = model(noised(clean[picked], level[:, None], noise), level) - noise
        return error.square().mean()

    average = MovingAverage(model.parameters(), params.ema)
    losses = descend(
        loss,
        model.parameters(),
        params.steps,
        rate=params.rate,
        optimiser="adamw",
        weight_decay=params.weight_decay,
        schedule="cosine",
        average=average,
        after=after,
    )
    average.copy_to_parameters()
    return model.eval(), losses


def noised(u: torch.Tensor, abar: torch.Tensor | float, noise: torch.Tensor) -> torch.Tensor:
    """Clean rows (n, k) at level abar: sqrt(abar) u + sqrt(1 - abar) noise."""
    import torch

    level = torch.as_tensor(abar, dtype=u.dtype, device=u.device)
    return level.sqrt() * u + (1 - level).sqrt() * noise


def noise_prediction_error(model: TabularDenoiser, rows: np.ndarray, abar: Floats, seed: int) -> float:
    """Mean squared error of the predicted noise over rows (n, k), averaged over the levels `abar`; one noise vector per row and level."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    clean = torch.as_tensor(rows, dtype=torch.float32, device=device)
    errors = []
    with torch.inference_mode():
        for level in abar:
            noise = torch.randn(clean.shape, generator=generator).to(device)
            errors.append(float((model(noised(clean, float(level), noise), float(level)) - noise).square().mean()))
    return float(np.mean(errors))
