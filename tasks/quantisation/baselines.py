"""Round-to-nearest quantisation of linear layers, plain or after a Hadamard rotation of their inputs (QuaRot, Ashkboos et al., 2024).

No training and no calibration: weights get one scale per output channel, activations one per token, at run time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tasks.quantisation.quantisers import UNQUANTISED, fake_quantise, largest_code, search_clip
from tasks.quantisation.rotations import rotate


class RoundedLinear(nn.Module):
    """A linear layer that computes Q(x) Q(W)^T + b, or Q(x S^T) Q(W S^T)^T + b with a block Hadamard matrix S.

    The arithmetic is the layer's own: levels are simulated, not stored as integers.

    Args:
        layer: whose weight (out, in) and bias are taken.
        weight_bits: 2 to 8, or 16 for none.
        activation_bits: the same for inputs.
        hadamard: rotate inputs and weight first.
        clip_search: choose each channel's clipping ratio by its squared error.

    Raises:
        ValueError: for unsupported bits.

    >>> layer = nn.Linear(8, 3)
    >>> x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    >>> bool((RoundedLinear(layer, 16, 16, hadamard=True)(x) - layer(x)).abs().max() < 1e-5)
    True
    """

    def __init__(
        self, layer: nn.Linear, weight_bits: int = 8, activation_bits: int = 8, *, hadamard: bool = False, clip_search: bool = False
    ) -> None:
        super().__init__()
        for bits in (weight_bits, activation_bits):
            if bits != UNQUANTISED:
                largest_code(bits)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.activation_bits, self.hadamard = activation_bits, hadamard
        weight = layer.weight.detach().float()
        weight = rotate(weight) if hadamard else weight
        clip = search_clip(weight, weight_bits) if clip_search and weight_bits != UNQUANTISED else 1.0
        rounded = fake_quantise(weight, weight_bits, clip=clip).to(layer.weight.dtype)
        self.weight = nn.Parameter(rounded, requires_grad=False)
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().clone(), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From x (..., in) to (..., out)."""
        x = rotate(x) if self.hadamard else x
        return nn.functional.linear(fake_quantise(x, self.activation_bits), self.weight, self.bias)


def round_linears(model: nn.Module, wanted: Callable[[str], bool], **options: int | bool) -> dict[str, nn.Linear]:
    """Replace linear layers of a model by `RoundedLinear` with these options.

    Args:
        model: is changed.
        wanted: name of a layer in the model -> whether it is replaced.
        options: of `RoundedLinear`.

    Returns:
        the layers that stood there, by name; `put_back` restores them.

    Raises:
        ValueError: if no linear layer is wanted.
    """
    found = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) and wanted(name)}
    if not found:
        raise ValueError("none of the model's linear layers is wanted; check the names against model.named_modules()")
    for name, layer in found.items():
        model.set_submodule(name, RoundedLinear(layer, **options))  # type: ignore[arg-type]
    return found


def put_back(model: nn.Module, layers: dict[str, nn.Linear]) -> None:
    """Set layers, by name."""
    for name, layer in layers.items():
        model.set_submodule(name, layer)
