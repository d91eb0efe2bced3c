from __future__ import annotations

import math

import pytest
import torch
from decode_cases import HEADS, dense_masked, step
from scipy import stats

from tasks.attention.budgets import normal_quantile
from tasks.attention.kernels.fused_decode import FusedSizes, signature_planes, signatures, vattention_decode, vattention_lists
from tasks.attention.kernels.gather_decode import sparse_decode
from tasks.attention.kernels.numba_decode import dense_decode
from tasks.attention.vattention import VAttentionConfig, select
from tasks.attention.weighted import scaled_logits

SIZES = FusedSizes(sink=8, window=8, heavy=20, base=30)


def cached(heads=6, groups=2, n=400, dtype=torch.float32, seed=0):
    query, keys, values = step(heads, groups, n, dtype=dtype, seed=seed)
    planes = signature_planes(32, torch.Generator().manual_seed(7))
    return query, keys, values, signatures(keys, planes), planes


def as_weights(indices, listed, n):
    """Lists as weights (H, n); refuses a key that is listed twice."""
    weights = torch.zeros(len(indices), n)
    for h in range(len(indices)):
        kept = indices[h][listed[h] > 0].long()
        assert len(kept) == len(kept.unique())
        weights[h, kept] = listed[h][listed[h] > 0]
    return weights


@pytest.mark.parametrize("ratio", [0.0, 60.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "groups"), HEADS)
def test_the_step_is_the_dense_masked_formula_of_what_it_reads(heads, groups, dtype, ratio):
    query, keys, values, signed, planes = cached(heads, groups, dtype=dtype)
    sizes = FusedSizes(8, 8, 20, 30, ratio)
    output, counts = vattention_decode(query, keys, values, signed, planes, sizes, seed=3)
    indices, listed = vattention_lists(query, keys, signed, planes, sizes, seed=3)
    weights = as_weights(indices, listed, 400)
    assert torch.equal((weights > 0).sum(-1), counts)
    torch.testing.assert_close(output, dense_masked(query, keys, values, weights), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output, sparse_decode(query, keys.float(), values.float(), indices, listed), atol=1e-5, rtol=1e-5)


def test_what_is_read_is_ends_nearest_signatures_and_a_sample_with_its_weight():
    query, keys, _, signed, planes = cached()
    weights = as_weights(*vattention_lists(query, keys, signed, planes, SIZES, seed=0), 400)
    bits = (signed[..., None] >> torch.arange(64)) & 1
    far = (bits.bool().repeat_interleave(3, 0) != (query @ planes.T >= 0)[:, None]).sum(-1)  # Hamming distances, (H, n)
    for h in range(6):
        assert (weights[h, :8] == 1).all()
        assert (weights[h, -8:] == 1).all()
        heavy = (weights[h, 8:-8] == 1).nonzero()[:, 0] + 8
        assert len(heavy) == 20
        others = far[h, 8:-8].sort().values
        assert sorted(far[h, heavy].tolist()) == others[:20].tolist()
        sampled = weights[h] > 1
        assert sampled.sum() == 30
        torch.testing.assert_close(weights[h][sampled], torch.full((30,), (400 - 36) / 30))


def test_signatures_tell_on_which_side_keys_lie():
    _, keys, _, signed, planes = cached()
    sides = (keys - keys.mean(1, keepdim=True)) @ planes.T >= 0
    bits = (signed[..., None] >> torch.arange(64)) & 1
    assert torch.equal(bits.bool(), sides)


def test_a_sample_of_everything_is_exact_attention():
    query, keys, values, signed, planes = cached()
    exact = dense_decode(query, keys, values)
    for sizes in (FusedSizes(8, 8, 20, 400), FusedSizes(0, 0, 400, 0), FusedSizes(4, 4, 10, 20, ratio=1e12), FusedSizes(400, 400, 0, 0)):
        output, counts = vattention_decode(query, keys, values, signed, planes, sizes, seed=1)
        assert counts.tolist() == [400] * 6
        torch.testing.assert_close(output, exact, atol=1e-5, rtol=1e-5)


def test_equal_residual_scores_need_no_more_than_the_base_sample():
    query, keys, values, signed, planes = cached()
    keys = torch.zeros_like(keys)
    _, counts = vattention_decode(query, keys, values, signed, planes, FusedSizes(8, 8, 20, 30, ratio=1e9), seed=1)
    assert counts.tolist() == [66] * 6


def test_draws_depend_on_seed_and_head_not_on_threads():
    query, keys, values, signed, planes = cached()
    one = vattention_decode(query, keys, values, signed, planes, SIZES, seed=5)
    for threads in (2, 4):
        assert torch.equal(vattention_decode(query, keys, values, signed, planes, SIZES, seed=5, threads=threads)[0], one[0])
    assert not torch.equal(vattention_decode(query, keys, values, signed, planes, SIZES, seed=6)[0], one[0])


def test_every_residual_key_is_drawn_equally_often():
    query, keys, _, signed, planes = cached(heads=2, groups=2, n=60)
    counted = torch.zeros(2, 60)
    for seed in range(3000):
        counted += as_weights(*vattention_lists(query, keys, signed, planes, FusedSizes(5, 5, 10, 10), seed), 60) > 1
    for h in range(2):
        drawn = counted[h][counted[h] > 0]
        assert len(drawn) == 40
        assert drawn.sum() == 3000 * 10
        # without replacement counts spread by (1 - 10/40) of the multinomial's, so the test is on the safe side
        assert stats.chisquare(drawn.numpy()).pvalue > 1e-3


def test_the_budget_is_that_of_the_slow_rule():
    """Given the kernel's own base sample, the rule of `tasks.attention.budgets` asks for the same number of draws."""
    query, keys, _, signed, planes = cached(n=2000)
    epsilon, z, base = 0.1, 1.96, 100
    ratio = (z / epsilon) ** 2
    before = as_weights(*vattention_lists(query, keys, signed, planes, FusedSizes(8, 8, 20, base), seed=2), 2000)
    _, counts = vattention_decode(query, keys, keys, signed, planes, FusedSizes(8, 8, 20, base, ratio), seed=2)
    logits = scaled_logits(query[None, :, None], keys[None])[0, :, 0].double()
    for h in range(6):
        e = torch.exp(logits[h] - logits[h].max())
        fixed, drawn = e[before[h] == 1].sum(), e[before[h] > 1]
        residual = 2000 - 36
        total = fixed + residual * drawn.mean()
        wanted = ratio * residual**2 * drawn.var() / total**2
        assert counts[h] == 36 + min(residual, max(base, math.ceil(wanted)))


def test_observed_errors_of_the_denominator_keep_the_bound():
    """Log-normal exponentials with a spread of about 1; heavier tails need a larger base sample."""
    query, keys, _, signed, planes = cached(heads=8, groups=8, n=3000)
    epsilon, delta, scaling = 0.05, 0.2, 0.5 / math.sqrt(32)
    sizes = FusedSizes(8, 8, 60, 150, (normal_quantile(delta) / epsilon) ** 2)
    logits = scaled_logits(query[None, :, None], keys[None], scaling)[0, :, 0]
    e = torch.exp(logits.double())
    missed = []
    for seed in range(60):
        weights = as_weights(*vattention_lists(query, keys, signed, planes, sizes, seed, scaling), 3000)
        missed.append(((weights * e).sum(-1) / e.sum(-1) - 1).abs() > epsilon)
    rates = torch.stack(missed).double().mean(0)
    assert rates.mean() <= delta + 3 * float(rates.std()) / math.sqrt(8)
    assert rates.max() > 0  # the bound is not kept by reading everything


def test_it_reads_about_as_much_as_the_reference():
    query, keys, _, signed, planes = cached(heads=8, groups=8, n=3000)
    scaling = 0.5 / math.sqrt(32)
    config = VAttentionConfig(sink=8, window=8, heavy=60, base=150, epsilon=0.05, delta=0.2)
    sizes = FusedSizes(8, 8, 60, 150, (normal_quantile(0.2) / 0.05) ** 2)
    simhash = scaled_logits(*((x @ planes.T).sign() for x in (query[None, :, None], (keys - keys.mean(1, keepdim=True))[None])), 1.0)
    logits, valid = scaled_logits(query[None, :, None], keys[None], scaling), torch.ones(1, 3000, dtype=torch.bool)
    theirs, mine = [], []
    for seed in range(20):
        theirs.append(select(logits, valid, config, torch.Generator().manual_seed(seed), scores=simhash).b.flatten() + 76)
        mine.append(vattention_lists(query, keys, signed, planes, sizes, seed, scaling)[1].gt(0).sum(-1))
    a, b = (torch.stack(x).double().mean(0) for x in (theirs, mine))
    assert a.min() > 1.5 * (76 + 150)  # the rule asks for more than the base sample
    torch.testing.assert_close(a, b, rtol=0.1, atol=0)


def test_a_fixed_size_reads_the_density():
    query, keys, values, signed, planes = cached(n=1000)
    for density in (0.05, 0.1, 0.5):
        _, counts = vattention_decode(query, keys, values, signed, planes, FusedSizes.of_density(1000, density), seed=0)
        assert counts.tolist() == [math.ceil(1000 * density)] * 6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FusedSizes(-1, 0, 0, 0), "sink must be at least 0"),
        (lambda: FusedSizes(0, 0, 0, 1), "base must be 0 or at least 2"),
        (lambda: FusedSizes(0, 0, 0, 2, math.inf), "ratio must be finite"),
        (lambda: FusedSizes.of_density(100, 0.0), "density must lie in"),
        (lambda: vattention_decode(*cached()[:3], torch.zeros(2, 3, dtype=torch.int64), cached()[4], SIZES, 0), "need key_signatures"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
