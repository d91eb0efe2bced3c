from __future__ import annotations

import pytest
import torch
from torch.nn.functional import silu

from tasks.gaussian_process.batched_networks import ReplicatedNetwork
from tasks.gaussian_process.streams import SeedStreams


def test_each_replica_is_its_own_plain_network():
    network = ReplicatedNetwork((3, 5, 4, 2), SeedStreams([0, 1]))
    g = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=g)
    x = torch.randn(2, 6, 3, generator=g)
    found = network(x)
    for r in range(2):
        h = x[r]
        for layer in range(3):
            h = h @ network.weights[layer][r] + network.biases[layer][r]
            h = silu(h) if layer < 2 else h
        torch.testing.assert_close(found[r], h)


def test_starts_at_zero_with_random_hidden_weights():
    network = ReplicatedNetwork((3, 5, 2), SeedStreams([0, 1]))
    assert network(torch.ones(2, 1, 3)).abs().max().item() == 0.0
    assert network.weights[0].abs().max().item() <= 3**-0.5
    assert not torch.equal(network.weights[0][0], network.weights[0][1])
    assert torch.equal(ReplicatedNetwork((3, 5, 2), SeedStreams([1])).weights[0][0], network.weights[0][1])


@pytest.mark.parametrize("widths", [(3,), (3, 0, 1)])
def test_impossible_widths_are_refused(widths):
    with pytest.raises(ValueError, match="widths"):
        ReplicatedNetwork(widths, SeedStreams([0]))
