from __future__ import annotations

import math

import pytest
import torch

from tasks.diffusion.denoiser import TabularDenoiser


def trained(width: int = 3, blocks: int = 2) -> TabularDenoiser:
    """A network whose last layer is not zero."""
    generator = torch.Generator().manual_seed(1)
    model = TabularDenoiser(width, hidden=8, blocks=blocks, generator=generator)
    with torch.no_grad():
        model.leave.weight.normal_(generator=generator)
    return model.eval()


def test_layer_by_layer_it_is_the_formula():
    model = trained(blocks=1)
    u, abar = torch.randn(4, 3, generator=torch.Generator().manual_seed(2)), 0.7
    angles = math.log(abar / (1 - abar)) * model.rates
    first, act, second = model.level
    told = second(act(first(torch.cat([angles.sin(), angles.cos()]))))
    x = u @ model.enter.weight.T + model.enter.bias
    block = model.blocks[0]
    inner = block.first(x) + block.told(told)
    x = x + block.second(inner * torch.sigmoid(inner))
    expected = (1 - abar) ** 0.5 * u + x @ model.leave.weight.T + model.leave.bias
    torch.testing.assert_close(model(u, abar), expected)


def test_untrained_it_is_the_exact_denoiser_of_unit_gaussians():
    model = TabularDenoiser(4, generator=torch.Generator().manual_seed(0))
    u = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(u, 0.75), 0.5 * u)


def test_one_level_for_all_rows_or_one_for_each():
    model = trained()
    u = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(model(u, 0.3), model(u, torch.full((4,), 0.3)))
    assert not torch.allclose(model(u, 0.3), model(u, 0.6))


def test_rows_do_not_see_each_other():
    model = trained().train()
    u = torch.randn(6, 3, generator=torch.Generator().manual_seed(2))
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    torch.testing.assert_close(model(u, 0.5)[order], model(u[order], 0.5))
    torch.testing.assert_close(model(u, 0.5)[:1], model(u[:1], 0.5))


def test_the_generator_decides_the_weights():
    models = [TabularDenoiser(3, hidden=8, generator=torch.Generator().manual_seed(s)) for s in (5, 5, 6)]
    assert torch.equal(models[0].enter.weight, models[1].enter.weight)
    assert not torch.equal(models[0].enter.weight, models[2].enter.weight)


def test_sizes_below_one_are_refused():
    with pytest.raises(ValueError, match=r"at least 1, got \(3, 0, 2, 16\)"):
        TabularDenoiser(3, hidden=0, generator=torch.Generator())
