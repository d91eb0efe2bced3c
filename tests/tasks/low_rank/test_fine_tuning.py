import numpy as np
import pytest
import torch

from tasks.low_rank.factorisations import Plain, fisher_scale, spectrum, truncate_heads, truncate_matrix
from tasks.low_rank.fine_tuning import element_weights, fine_tune, weighted_error
from tests.tasks.low_rank.tiny import positive, randn

HEADS, E, H, R = 3, 10, 6, 2


def start(weight: torch.Tensor, rank: int = R) -> tuple[torch.Tensor, torch.Tensor]:
    found = truncate_heads(spectrum(weight, Plain()), rank)
    return found.A, found.B


def test_the_objective_is_the_normalised_weighted_error_and_falls():
    W, F = randn(HEADS, E, H), positive(HEADS, E, H, seed=1)
    A, B = start(W)
    path = fine_tune(F, W, A, B, steps=60, rate=1e-2, keep=(20, 40))
    assert path.objective[0, 0] == pytest.approx(float(weighted_error(F, W, A, B)), rel=1e-5)
    for step in (0, 20, 40, 60):
        assert path.objective[step, 0] == pytest.approx(float(weighted_error(F, W, *path.last[step])), rel=1e-4)
    assert path.objective[60, 0] < 0.9 * path.objective[0, 0]


def test_gradients_are_those_of_autograd():
    W, F = randn(HEADS, E, H), positive(HEADS, E, H, seed=1)
    A, B = (part.clone().requires_grad_(True) for part in start(W))
    optimiser = torch.optim.Adam([A, B], lr=1e-2)
    for _ in range(5):
        optimiser.zero_grad()
        weighted_error(F, W, A, B).backward()
        optimiser.step()
    path = fine_tune(F, W, *start(W), steps=5, rate=1e-2)
    torch.testing.assert_close(path.last[5][0], A.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(path.last[5][1], B.detach(), rtol=1e-4, atol=1e-5)


def test_at_full_rank_nothing_is_left_to_do():
    W, F = randn(HEADS, E, H), positive(HEADS, E, H, seed=1)
    path = fine_tune(F, W, *start(W, H), steps=20, rate=1e-5)
    assert path.objective.max() < 1e-4
    A, B = path.best[20]
    torch.testing.assert_close(A @ B, W, atol=1e-3, rtol=1e-3)


def test_constant_weights_keep_the_truncated_svd():
    """Eckart and Young: the truncated SVD is the optimum, and its error the dropped squared singular values."""
    W = randn(1, E, H)
    A, B = start(W)
    path = fine_tune(torch.ones_like(W), W, A + 0.3 * randn(1, E, R, seed=5), B, steps=1500, rate=1e-2)
    best = float(torch.linalg.svdvals(W)[0, R:].square().sum() / W.square().sum())
    assert path.objective.min() >= best - 1e-5
    assert path.objective[-1, 0] == pytest.approx(best, rel=2e-2)
    assert fine_tune(torch.ones_like(W), W, A, B, steps=0).objective[0, 0] == pytest.approx(best, rel=1e-4)


def test_row_constant_weights_have_the_optimum_of_fwsvd():
    W, rows = randn(1, E, H), positive(1, E, 1, seed=2)
    F = rows.expand(1, E, H).contiguous()
    closed = truncate_matrix(spectrum(W[0], fisher_scale(F[0])), R)
    best = float(weighted_error(F, W, closed.A[None], closed.B[None]))
    path = fine_tune(F, W, *start(W), steps=1500, rate=1e-2)
    assert path.objective.min() >= best - 1e-5
    assert path.objective[-1, 0] == pytest.approx(best, rel=2e-2)


def test_the_objective_does_not_see_a_change_of_basis():
    W, F = randn(HEADS, E, H), positive(HEADS, E, H, seed=1)
    A, B = start(W)
    M = torch.eye(R) + 0.3 * randn(R, R, seed=7)
    torch.testing.assert_close(weighted_error(F, W, A @ M, torch.linalg.inv(M) @ B), weighted_error(F, W, A, B), rtol=1e-4, atol=1e-6)


def test_each_group_is_normalised_by_itself_and_heads_do_not_mix():
    W, F = randn(HEADS, E, H), positive(HEADS, E, H, seed=1)
    A, B = start(W)
    scaled = torch.cat([F[:1], 100 * F[1:]])
    together = fine_tune(scaled, W, A, B, steps=10, rate=1e-2, groups=(1, 2))
    alone = fine_tune(F[1:], W[1:], A[1:], B[1:], steps=10, rate=1e-2)
    np.testing.assert_allclose(together.objective[:, 1], alone.objective[:, 0], rtol=1e-4)


def test_the_best_iterate_is_never_above_the_start():
    W, F = randn(HEADS, E, H), positive(HEADS, E, H, seed=1)
    A, B = start(W)
    wild = fine_tune(F, W, A, B, steps=6, rate=5.0, keep=range(7))
    assert wild.objective[-1, 0] > wild.objective[0, 0]  # this rate does harm
    for step in range(7):
        errors = [float(weighted_error(F, W, *wild.best[s])) for s in range(step + 1)]
        assert errors[-1] <= wild.objective[0, 0] * (1 + 1e-5)
        assert errors == sorted(errors, reverse=True)


def test_zero_columns_beyond_a_heads_rank_stay_zero():
    W, F = randn(HEADS, E, H), positive(HEADS, E, H, seed=1)
    A, B = start(W, 3)
    A[1, :, 2] = 0
    B[1, 2] = 0
    A_end, B_end = fine_tune(F, W, A, B, steps=20, rate=1e-2).last[20]
    assert float(A_end[1, :, 2].abs().max()) == float(B_end[1, 2].abs().max()) == 0
    assert float(A_end[0, :, 2].abs().min()) > 0


def test_kinds_of_weights():
    fisher, magnitude = positive(2, 3, 4), positive(2, 3, 4, seed=1)
    assert torch.equal(element_weights(fisher, damping=0.0), fisher)
    assert torch.equal(element_weights(fisher, "none"), torch.ones(2, 3, 4))
    rows = element_weights(fisher, "row", damping=0.0)
    torch.testing.assert_close(rows, fisher.mean(-1, keepdim=True).expand(2, 3, 4))
    assert torch.equal(element_weights(fisher, "first_order", magnitude, damping=0.0), magnitude)
    damped = element_weights(torch.tensor([[[0.0, 2.0]]]), damping=0.1)
    torch.testing.assert_close(damped, torch.tensor([[[0.1, 2.1]]]))
    clipped = element_weights(torch.arange(1.0, 101).reshape(1, 10, 10), damping=0.0, clip_quantile=0.5)
    assert float(clipped.max()) == 50.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: element_weights(torch.ones(1, 2, 2), "columns"), "unknown weighting 'columns'"),
        (lambda: element_weights(torch.ones(1, 2, 2), "first_order"), "abs_gradient"),
        (lambda: element_weights(-torch.ones(1, 2, 2)), "not negative"),
        (lambda: element_weights(torch.zeros(1, 2, 2)), "no gradient reached"),
        (lambda: element_weights(torch.ones(1, 2, 2), clip_quantile=99.9), r"\(0, 1\], got 99.9"),
        (lambda: element_weights(torch.full((1, 2, 2), float("inf"))), "finite"),
        (lambda: fine_tune(torch.ones(1, 4, 3), torch.ones(1, 4, 3), torch.ones(1, 4, 2), torch.ones(1, 1, 3)), "shapes do not fit"),
        (lambda: fine_tune(positive(2, 4, 3), randn(2, 4, 3), randn(2, 4, 1), randn(2, 1, 3), groups=(1,)), "do not add up to 2"),
        (lambda: fine_tune(positive(1, 4, 3), randn(1, 4, 3), randn(1, 4, 1), randn(1, 1, 3), steps=3, keep=(5,)), r"0\.\.\.3"),
        (lambda: fine_tune(torch.zeros(1, 4, 3), randn(1, 4, 3), randn(1, 4, 1), randn(1, 1, 3)), "zero everywhere"),
    ],
)
def test_what_is_wrong_is_said(call, message):
    with pytest.raises(ValueError, match=message):
        call()
