from __future__ import annotations

import math

import pytest
import torch

from tasks.gaussian_process.kernels import LENGTHSCALES, ArdRbf, cholesky


def test_kernel_is_that_of_a_loop_over_pairs():
    generator = torch.Generator().manual_seed(0)
    kernel = ArdRbf(2, 3).double()
    kernel.log_lengthscale.data = torch.randn(2, 3, generator=generator).double()
    kernel.log_variance.data = torch.randn(2, generator=generator).double()
    a, b = torch.randn(2, 4, 3, generator=generator).double(), torch.randn(2, 5, 3, generator=generator).double()
    found = kernel(a, b)
    for r in range(2):
        for i in range(4):
            for j in range(5):
                scaled = sum(((a[r, i, k] - b[r, j, k]).item() / math.exp(kernel.log_lengthscale[r, k].item())) ** 2 for k in range(3))
                assert found[r, i, j].item() == pytest.approx(math.exp(kernel.log_variance[r].item() - scaled / 2), rel=1e-9)
    torch.testing.assert_close(kernel(a, a).diagonal(dim1=1, dim2=2), kernel.diagonal()[:, None].expand(2, 4))


def test_lengthscales_stay_where_matrices_can_be_factored():
    kernel = ArdRbf(1, 1)
    kernel.log_lengthscale.data.fill_(50.0)
    assert kernel.lengthscale().item() == pytest.approx(LENGTHSCALES[1])


def test_factor_gives_the_matrix_back():
    generator = torch.Generator().manual_seed(1)
    half = torch.randn(3, 4, 4, generator=generator).double()
    gram, variance = half @ half.mT, torch.tensor([1.0, 2.0, 3.0]).double()
    lower = cholesky(gram, variance, jitter=1e-3)
    torch.testing.assert_close(lower @ lower.mT, gram + 1e-3 * variance[:, None, None] * torch.eye(4).double())


def test_jitter_grows_for_the_failing_replica_alone():
    singular = torch.ones(3, 3).double() - 5e-4 * torch.eye(3).double()  # smallest eigenvalue -5e-4
    gram = torch.stack([torch.eye(3).double(), singular])
    lower = cholesky(gram, torch.ones(2).double(), jitter=1e-4)
    torch.testing.assert_close(lower[0] @ lower[0].mT, (1 + 1e-4) * torch.eye(3).double())
    torch.testing.assert_close(lower[1] @ lower[1].mT, singular + 1e-3 * torch.eye(3).double())


@pytest.mark.parametrize("jitter", [0.0, 1e-4])
def test_hopeless_matrix_names_the_layer_and_the_replica(jitter):
    gram = torch.stack([torch.eye(2), -torch.eye(2)])
    with pytest.raises(RuntimeError, match=r"layer 3.*replica 1"):
        cholesky(gram, torch.ones(2), jitter, "layer 3")


@pytest.mark.parametrize(("sizes", "values"), [((0, 1), (1.0, 1.0)), ((1, 0), (1.0, 1.0)), ((1, 1), (0.0, 1.0)), ((1, 1), (1.0, -1.0))])
def test_impossible_kernels_are_refused(sizes, values):
    with pytest.raises(ValueError, match="must be"):
        ArdRbf(*sizes, *values)
