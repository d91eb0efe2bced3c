from __future__ import annotations

import pytest
import torch
from torch import nn

from tasks.quantisation.baselines import RoundedLinear, put_back, round_linears
from tasks.quantisation.quantisers import fake_quantise


def layer(bias: bool = True) -> nn.Linear:
    made = nn.Linear(24, 10, bias=bias)
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g))
    return made


def tokens(seed: int = 1) -> torch.Tensor:
    return torch.randn(3, 5, 24, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bias", [True, False])
def test_rounding_equals_integers_times_scales(bias):
    dense, x = layer(bias), tokens()
    expected = fake_quantise(x, 8) @ fake_quantise(dense.weight.detach(), 8).T + (dense.bias if bias else 0)
    torch.testing.assert_close(RoundedLinear(dense)(x), expected)


@pytest.mark.parametrize("hadamard", [True, False])
def test_sixteen_bits_are_the_layer_itself(hadamard):
    dense, x = layer(), tokens()
    torch.testing.assert_close(RoundedLinear(dense, 16, 16, hadamard=hadamard)(x), dense(x), atol=1e-5, rtol=1e-5)


def test_a_rotation_helps_against_outliers_in_a_channel():
    dense, x = layer(), tokens()
    x[..., 3] *= 80
    errors = {h: (RoundedLinear(dense, 8, 8, hadamard=h)(x) - dense(x)).square().mean().item() for h in (True, False)}
    assert errors[True] < 0.5 * errors[False]


def test_clip_search_lowers_the_error_of_the_weight():
    dense = layer()
    with torch.no_grad():
        dense.weight[:, 0] *= 5
    errors = [(RoundedLinear(dense, 3, 16, clip_search=c).weight - dense.weight).square().sum().item() for c in (False, True)]
    assert errors[1] < errors[0]


def test_layers_of_a_model_are_replaced_and_put_back():
    model = nn.Sequential(layer(), nn.ReLU(), nn.Linear(10, 24))
    x = tokens()
    before = model(x)
    kept = round_linears(model, lambda name: name == "0", weight_bits=4, activation_bits=8)
    assert set(kept) == {"0"}
    assert isinstance(model[0], RoundedLinear)
    assert not torch.allclose(model(x), before)
    put_back(model, kept)
    assert torch.equal(model(x), before)


def test_nothing_to_replace_and_bad_bits_are_refused():
    with pytest.raises(ValueError, match="none of the model's linear layers"):
        round_linears(nn.Sequential(layer()), lambda name: False)
    with pytest.raises(ValueError, match="got 10"):
        RoundedLinear(layer(), weight_bits=10)
