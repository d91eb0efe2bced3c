"""Small fully connected networks, one per replica, as batched matrix products; the last layer starts at zero."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tasks.gaussian_process.streams import SeedStreams


class ReplicatedNetwork(nn.Module):
    """SiLU network from (R, ..., widths[0]) to (R, ..., widths[-1]).

    Args:
        widths: input, hidden layers, output; at least two.
        streams: of the initial weights, uniform in +-1/sqrt(fan in); the output layer is zero.

    Raises:
        ValueError: for fewer than two widths, or a width below 1.

    >>> network = ReplicatedNetwork((3, 8, 2), SeedStreams([0, 1]))
    >>> network(torch.ones(2, 5, 3)).abs().max().item()
    0.0
    """

    def __init__(self, widths: tuple[int, ...], streams: SeedStreams) -> None:
        super().__init__()
        if len(widths) < 2 or min(widths) < 1:
            raise ValueError(f"widths must be at least two positive numbers, got {widths}")
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for number, (fan_in, fan_out) in enumerate(pairwise(widths)):
            bound = 0.0 if number == len(widths) - 2 else fan_in**-0.5
            self.weights.append(nn.Parameter((2 * streams.uniform(fan_in, fan_out) - 1) * bound))
            self.biases.append(nn.Parameter((2 * streams.uniform(1, fan_out) - 1) * bound))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (R, n, widths[-1]) of x (R, n, widths[0])."""
        return self.tail(torch.baddbmm(self.biases[0], x, self.weights[0]))

    def tail(self, x: Tensor) -> Tensor:
        """The rest of the network, given the first layer's sums (R, n, widths[1])."""
        for weight, bias in zip(list(self.weights)[1:], list(self.biases)[1:], strict=True):
            x = torch.baddbmm(bias, F.silu(x), weight)
        return x
