"""Stacked networks against single ones."""

import doctest

import pytest
import torch

from tasks.offline_rl import stacked as module
from tasks.offline_rl.stacked import StackedMlp, generators_of, target_update


def nets(seeds=(0, 1, 2), **options):
    return StackedMlp([torch.Generator().manual_seed(s) for s in seeds], (4, 8, 8, 2), **options)


def single(weights, p, x, squash, layer_norm):
    """One network written with torch's own linear map."""
    hidden = x
    for layer in range(0, len(weights), 2):
        hidden = torch.nn.functional.linear(hidden, weights[layer][p].T, weights[layer + 1][p, 0])
        if layer < len(weights) - 2:
            hidden = torch.nn.functional.layer_norm(hidden, (8,)) if layer_norm else hidden
            hidden = hidden.clamp(min=0)
    return hidden.tanh() if squash else hidden


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_a_stack_is_its_networks_one_by_one(squash, layer_norm):
    stack, x = nets(squash=squash, layer_norm=layer_norm), torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(9))
    slow = torch.stack([single(stack.weights(), p, x[p], squash, layer_norm) for p in range(3)])
    torch.testing.assert_close(stack(x), slow)
    torch.testing.assert_close(stack(x[:2], first=2), slow[:2])


def test_a_network_is_the_same_in_any_company():
    torch.testing.assert_close(nets((1,)).weights()[0][0], nets((0, 1, 2)).weights()[0][1])


def test_frozen_weights_get_no_gradient_and_inputs_do():
    stack, x = nets(), torch.zeros(3, 5, 4, requires_grad=True)
    stack(x, frozen=True).sum().backward()
    assert all(t.grad is None for t in stack.parameters())
    assert x.grad.abs().sum().item() > 0


def test_dropout_keeps_the_mean_and_acts_only_with_generators():
    stack = StackedMlp([torch.Generator().manual_seed(0)], (1, 4000, 1), dropout=0.25)
    stack.load([torch.ones(1, 1, 4000), torch.zeros(1, 1, 4000), torch.full((1, 4000, 1), 1 / 4000), torch.zeros(1, 1, 1)])
    one = torch.ones(1, 1, 1)
    assert stack(one).item() == pytest.approx(1.0, rel=1e-5)
    dropped = stack(one, [torch.Generator().manual_seed(1)]).item()
    assert dropped != pytest.approx(1.0, rel=1e-5)
    assert dropped == pytest.approx(1.0, abs=0.05)


def test_targets_move_by_the_rate():
    a, b = nets((0,)), nets((1,))
    before, goal = a.weights()[0].clone(), b.weights()[0]
    target_update(a, b, 0.25)
    torch.testing.assert_close(a.weights()[0], 0.75 * before + 0.25 * goal)


def test_seeds_are_tuples_that_do_not_collide():
    first = [torch.rand(1, generator=g).item() for g in generators_of([(0, 1), (1, 0), (0, 1)])]
    assert first[0] == first[2] != first[1]


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match="two positive sizes"):
        StackedMlp([], (4, 2))
    with pytest.raises(ValueError, match="dropout"):
        nets(dropout=1.0)
    with pytest.raises(ValueError, match="the weights have shapes"):
        nets().load(nets((0,)).weights())
