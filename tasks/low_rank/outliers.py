"""What rotations do to the numbers that are rounded: inputs and latents of one projection, before and after, and the figures of it.

One scale per token covers the token's largest magnitude; how far that lies above the root mean square says how many levels the rest is
left with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from tasks.low_rank.attention import attention_blocks
from tasks.low_rank.factorisations import HeadFactors
from tasks.low_rank.methods import Factors
from tasks.quantisation.rotations import rotate

RANGE = 20.0
"""Multiples of the root mean square that histograms reach; what lies beyond is counted at the ends."""
BINS = 100


@dataclass(frozen=True)
class Rounded:
    """One kind of numbers, each slice (token, or token and head) divided by its root mean square.

    Attributes:
        peak: largest magnitude of a slice, mean over slices.
        counts: histogram between -RANGE and RANGE, as shares, (BINS,).
    """

    peak: float
    counts: np.ndarray

    @classmethod
    def of(cls, x: torch.Tensor) -> Rounded:
        """Numbers (..., n), a scale per slice of the last dimension.

        >>> Rounded.of(torch.tensor([[0.0, 0.0, 0.0, 2.0]])).peak
        2.0
        """
        found = x / x.square().mean(-1, keepdim=True).sqrt().clamp_min(torch.finfo(x.dtype).tiny)
        edges = np.linspace(-RANGE, RANGE, BINS + 1)
        counts, _ = np.histogram(found.clamp(-RANGE, RANGE).double().numpy(), edges)
        return cls(float(found.abs().amax(-1).double().mean()), counts / counts.sum())


def inputs_of(model: nn.Module, ids: torch.Tensor, layer: int) -> torch.Tensor:
    """What a layer's projections see, (n * T, E) float32, when a model reads sequences (n, T)."""
    seen: list[torch.Tensor] = []
    module = attention_blocks(model)[layer].projection("k")
    hook = module.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().float().flatten(0, 1).cpu()))
    try:
        with torch.inference_mode():
            model.base_model(input_ids=ids, use_cache=False)  # type: ignore[operator]
    finally:
        hook.remove()
    return seen[0].clone()


def outliers(x: torch.Tensor, factors: Factors, latent_rotation: torch.Tensor) -> dict[str, Rounded]:
    """Inputs x (n, E) and latents x A_h of factors per head, plain and rotated by S1 and S2 (h, r, r)."""
    assert isinstance(factors, HeadFactors)
    latent = torch.einsum("te,her->thr", x, factors.A.float().cpu())
    turned = torch.einsum("thr,hsr->ths", latent, latent_rotation.float().cpu())
    parts = {"input_plain": x, "input_rotated": rotate(x), "latent_plain": latent, "latent_rotated": turned}
    return {name: Rounded.of(part) for name, part in parts.items()}


def outlier_figure(found: Mapping[str, Rounded]) -> Any:
    """Histograms of inputs and latents, before and after their rotation."""
    from tasks.common.plotting import COLOURS, figure

    sheet, axes = figure(8.0, 3.4, columns=2, sharey=True)
    centres = (np.arange(BINS) + 0.5) * 2 * RANGE / BINS - RANGE
    for axis, kind, title in ((axes[0], "input", "inputs X"), (axes[1], "latent", "latents C = X A")):
        for how, colour in (("plain", COLOURS[1]), ("rotated", COLOURS[0])):
            part = found[f"{kind}_{how}"]
            shares = np.where(part.counts > 0, part.counts, np.nan)
            axis.step(centres, shares, where="mid", color=colour, label=f"{how}: peak {part.peak:.1f}")
        axis.set(title=title, xlabel="multiple of the token's root mean square", yscale="log")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("share of all numbers")
    return sheet


def training_figure(curve: Any) -> Any:
    """Objective of training through rounding by step, relative to its start, mean over seeds; one line per precision."""
    from tasks.common.plotting import COLOURS, figure

    sheet, axis = figure(6.0, 3.6)
    for colour, (precision, part) in zip(COLOURS, curve.groupby("precision", sort=False), strict=False):
        mean = part.groupby("step")["objective"].mean()
        axis.plot(mean.index, mean / mean.iloc[0], color=colour, label=precision)
    axis.axhline(1, color=COLOURS[7], lw=1, ls="--")
    axis.set(xlabel="step of training through rounding", ylabel="weighted error over its start")
    axis.legend()
    return sheet
