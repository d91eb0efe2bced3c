"""A denoiser for rows of a table: a residual network of the noisy vector and of the noise level.

It knows vectors of one width and levels, nothing about what the columns mean. Rows never see each other (no batch statistics).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class TabularDenoiser(nn.Module):
    """Predicts the noise eps in sqrt(abar) u + sqrt(1 - abar) eps.

    sqrt(1 - abar) u_t is built in, and the network, which starts at zero, adds what that misses: one that has learnt nothing is the exact
    denoiser of N(0, I), the right start for rows of unit scale. Taking out the best *anisotropic* linear guess instead looks better and
    learns worse: what is left of a mixture is then at least cubic, and its direction is hard to find among many.

    Args:
        width: columns k.
        hidden: width of the residual stream.
        blocks: residual blocks (linear, SiLU, linear), each told the level.
        frequencies: of the sinusoidal embedding of the log signal-to-noise ratio.
        generator: initial weights.

    Raises:
        ValueError: for a size below 1.

    >>> model = TabularDenoiser(3, hidden=8, blocks=1, generator=torch.Generator().manual_seed(0))
    >>> u = torch.ones(2, 3)
    >>> torch.allclose(model(u, 0.36), 0.8 * u)
    True
    """

    rates: Tensor

    def __init__(
        self,
        width: int,
        hidden: int = 160,
        blocks: int = 2,
        *,
        frequencies: int = 16,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if min(width, hidden, blocks, frequencies) < 1:
            raise ValueError(f"width, hidden, blocks and frequencies must be at least 1, got {(width, hidden, blocks, frequencies)}")
        # log-SNR runs from about +8 to -10: periods from 1.5 to 60 tell all levels apart.
        self.register_buffer("rates", torch.logspace(math.log10(2 * math.pi / 60), math.log10(2 * math.pi / 1.5), frequencies))
        self.level = nn.Sequential(nn.Linear(2 * frequencies, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.enter = nn.Linear(width, hidden)
        self.blocks = nn.ModuleList(_Block(hidden) for _ in range(blocks))
        self.leave = nn.Linear(hidden, width)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                bound = 1 / math.sqrt(module.in_features)
                nn.init.uniform_(module.weight, -bound, bound, generator=generator)
                nn.init.zeros_(module.bias)
        nn.init.zeros_(self.leave.weight)

    def forward(self, u: Tensor, abar: Tensor | float) -> Tensor:
        """Noise (n, k) in rows u (n, k) at one level, or a level for each row (n,)."""
        level = torch.as_tensor(abar, dtype=torch.float32, device=u.device).reshape(-1, 1)  # (1, 1) or (n, 1)
        angles = torch.log(level / (1 - level)) * self.rates  # (1 or n, frequencies)
        told = self.level(torch.cat([angles.sin(), angles.cos()], dim=1))  # (1 or n, hidden)
        x = self.enter(u)
        for block in self.blocks:
            x = block(x, told)
        out: Tensor = (1 - level).sqrt() * u + self.leave(x)
        return out


class _Block(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first, self.second, self.told = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        out: Tensor = x + self.second(nn.functional.silu(self.first(x) + self.told(told)))
        return out
