from __future__ import annotations

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from tasks.gaussian_process.gaussian import GaussianPosterior
from tasks.gaussian_process.streams import SeedStreams


def test_divergence_is_that_of_multivariate_normals():
    posterior = GaussianPosterior(2, 3, 2).double()
    g = torch.Generator().manual_seed(0)
    posterior.mean.data = torch.randn(2, 3, 2, generator=g).double()
    posterior.root.data = torch.randn(2, 2, 3, 3, generator=g).double()
    drawn = posterior.draw(torch.zeros(2, 3, 1), 1, SeedStreams([0, 1]))
    for r in range(2):
        total = 0.0
        for column in range(2):
            lower = posterior.root[r, column].tril()
            q = MultivariateNormal(posterior.mean[r, :, column], lower @ lower.mT)
            total += kl_divergence(q, MultivariateNormal(torch.zeros(3).double(), torch.eye(3).double())).item()
        assert drawn.kl[r].item() == pytest.approx(total)


def test_starts_at_the_prior():
    assert GaussianPosterior(2, 3, 2).draw(torch.zeros(2, 3, 1), 1, SeedStreams([0, 1])).kl.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("sizes", "scale"), [((0, 1, 1), 1.0), ((1, 0, 1), 1.0), ((1, 1, 0), 1.0), ((1, 1, 1), 0.0)])
def test_impossible_posteriors_are_refused(sizes, scale):
    with pytest.raises(ValueError, match="must be"):
        GaussianPosterior(*sizes, scale)
