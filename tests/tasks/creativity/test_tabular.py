import numpy as np
import torch

from tasks.creativity.tabular import TabularPolicy, from_counts
from tasks.creativity.triangles import TriangleTask


def test_samples_have_the_probabilities_that_the_policy_states():
    policy = TabularPolicy(3)
    with torch.no_grad():
        for table in policy.tables:
            table.copy_(torch.from_numpy(np.random.default_rng(0).normal(size=table.shape)))
    samples = policy.sample(40_000, np.random.default_rng(1))
    triples = np.stack(np.meshgrid(*[range(3)] * 3, indexing="ij"), -1).reshape(-1, 3)
    log_p = policy.log_probabilities(torch.from_numpy(triples))
    p = log_p.gather(-1, torch.from_numpy(triples)[..., None]).sum((1, 2)).exp().detach().numpy()
    assert abs(p.sum() - 1) < 1e-5
    share = np.bincount(samples @ np.array([9, 3, 1]), minlength=27) / len(samples)
    assert np.abs(share - p).max() < 0.01


def test_counts_are_smoothed_as_stated():
    """Vertices 0, 1, 2 and 3; edges of triangle 012 (shown) and 23: p(v1), p(v2 | 0) and p(v3 | 0, 1) by hand."""
    adjacency = np.zeros((4, 4), bool)
    for i, j in ((0, 1), (1, 2), (0, 2), (2, 3)):
        adjacency[i, j] = adjacency[j, i] = True
    policy = from_counts(TriangleTask(adjacency, np.array([[0, 1, 2]]), np.array([[1, 2, 3]])))
    p = policy.log_probabilities(torch.tensor([[0, 1, 2]])).exp()[0].detach().numpy()
    np.testing.assert_allclose(p[0], np.array([2.05, 2.05, 2.05, 0.05]) / 6.2, rtol=1e-5)
    np.testing.assert_allclose(p[1], np.array([0.02, 1.32, 1.32, 0.02]) / 2.68, rtol=1e-5)
    np.testing.assert_allclose(p[2], np.array([0.31, 0.31, 1.31, 0.01]) / 1.94, rtol=1e-5)
