from __future__ import annotations

import itertools
import math

import pytest
import torch
from attention_cases import exact_attention, generator, qkv
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.attention.budgets import normal_quantile
from tasks.attention.errors import Exact, row_errors
from tasks.attention.selection import random_order, sample_weights
from tasks.attention.vattention import Vattention, VAttentionConfig, attend, select, warn_about
from tasks.attention.weighted import causal_valid, exponentials, weighted_attention

SMALL = {"sink": 4, "window": 4, "heavy": 6}


def rows_of(n=200, rows=5, heads=3, scale=1.5, seed=0):
    """Logits (heads, rows, n) with a heavy tail, and values that depend on the key."""
    g = generator(seed)
    logits = torch.randn(heads, rows, n, generator=g) * scale
    values = torch.randn(heads, n, 4, generator=g) + logits.mean(1)[..., None]
    return logits, torch.ones(rows, n, dtype=torch.bool), values


def by_hand(logits, config, places, values=None):
    """The pseudo-code for one row, given the random order of its residual: (weights, b)."""
    n = len(logits)
    e = torch.exp(logits.double() - logits.double().max())
    sink, window = config.sink, config.window
    ends = set(range(sink)) | set(range(n - window, n))
    heavy = sorted((i for i in range(n) if i not in ends), key=lambda i: -logits[i].item())[: config.heavy]
    fixed = ends | set(heavy)
    residual = sorted((i for i in range(n) if i not in fixed), key=lambda i: places[i].item())
    n_s = len(residual)
    b0 = min(max(math.ceil(config.base * n_s), config.base_min), n_s)
    sampled = e[residual[:b0]]
    kept = sum(e[i] for i in fixed)
    z = normal_quantile(config.delta)
    wanted = (z * n_s * sampled.std() / (config.epsilon * (kept + n_s * sampled.mean()))) ** 2
    if config.mode != "denominator":
        z = normal_quantile(config.delta / 2 if config.mode == "sdpa" else config.delta)
        share = config.epsilon / 4 if config.mode == "sdpa" else config.epsilon
        terms = sampled[:, None] * values[residual[:b0]].double()
        total = sum(e[i] * values[i].double() for i in fixed) + n_s * terms.mean(0)
        for_numerator = (z * n_s * terms.var(0).sum().sqrt() / (share * total.norm())) ** 2
        for_denominator = (z * n_s * sampled.std() / (share * (kept + n_s * sampled.mean()))) ** 2
        wanted = max(for_numerator, for_denominator) if config.mode == "sdpa" else for_numerator
    b = min(max(math.ceil(wanted), b0), n_s)
    weights = torch.zeros(n)
    weights[sorted(fixed)] = 1.0
    weights[residual[:b]] = n_s / b
    return weights, b


@pytest.mark.parametrize("mode", ["denominator", "numerator", "sdpa"])
@pytest.mark.parametrize("epsilon", [0.05, 0.3])
def test_every_row_follows_the_pseudo_code(mode, epsilon):
    logits, valid, values = rows_of()
    config = VAttentionConfig(**SMALL, base=0.1, epsilon=epsilon, delta=0.1, mode=mode)
    chosen = select(logits, valid, config, generator(5), values=values)
    places = random_order(valid & ~chosen.fixed, generator(5))
    for h, r in itertools.product(range(3), range(5)):
        weights, b = by_hand(logits[h, r], config, places[h, r], values[h])
        assert chosen.b[h, r] == b
        assert torch.allclose(chosen.weights[h, r], weights, rtol=1e-5)
    assert mode != "denominator" or epsilon != 0.05 or (chosen.b > chosen.b0).any()


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("everything", [{"heavy": 1.0}, {"base": 1.0}, {"min_residual": 10**6}])
def test_reading_everything_is_exact_attention(groups, everything):
    q, k, v = qkv(groups=groups)
    out, chosen = attend(q, k, v, VAttentionConfig(**everything), generator())
    assert torch.allclose(out, exact_attention(q, k, v), atol=1e-5)
    assert (chosen.read == causal_valid(3, 120)).all()


def test_rows_never_read_what_comes_after_them():
    q, k, v = qkv(rows=20, n=60)
    _, chosen = attend(q, k, v, VAttentionConfig(**SMALL), generator())
    assert not (chosen.read & ~causal_valid(20, 60)).any()


def test_fewer_keys_than_ends():
    q, k, v = qkv(rows=1, n=6)
    out, chosen = attend(q, k, v, VAttentionConfig(sink=5, window=5, heavy=2), generator())
    assert torch.allclose(out, exact_attention(q, k, v), atol=1e-5)
    assert chosen.weights.max() == 1.0


def test_without_the_budget_rule_and_heavy_keys_it_is_uniform_sampling():
    logits, valid, _ = rows_of()
    config = VAttentionConfig(sink=2, window=3, heavy=0, base=40, adaptive=False)
    chosen = select(logits, valid, config, generator(2))
    fixed = torch.zeros(200, dtype=torch.bool)
    fixed[:2] = fixed[-3:] = True
    drawn = random_order((~fixed).expand(3, 5, 200), generator(2)) <= 40
    expected = sample_weights(fixed.expand(3, 5, 200), drawn, torch.tensor(195), torch.tensor(40))
    assert torch.equal(chosen.weights, expected)


def test_a_generous_bound_takes_the_base_sample_alone():
    logits, valid, _ = rows_of(scale=0.1)
    chosen = select(logits, valid, VAttentionConfig(**SMALL, base=0.2, epsilon=0.99, delta=0.99), generator())
    assert torch.equal(chosen.b, chosen.b0)


def test_equal_scores_need_only_the_base_sample_and_give_the_denominator():
    logits, valid, values = rows_of()
    logits = torch.full_like(logits, 0.7)
    chosen = select(logits, valid, VAttentionConfig(**SMALL, epsilon=0.01, delta=0.01), generator())
    assert torch.equal(chosen.b, chosen.b0)
    assert (chosen.wanted == 0).all()
    assert row_errors(Exact.of(logits, valid, values), chosen.weights, values).derr.abs().max() < 1e-5


@pytest.mark.parametrize(("n_s", "b"), [(5, 1), (5, 2), (6, 3), (4, 4)])
def test_over_all_samples_both_sums_are_unbiased(n_s, b):
    g = generator(n_s * 10 + b)
    n = n_s + 3
    e, values = torch.rand(n, generator=g, dtype=torch.float64), torch.randn(n, 2, generator=g, dtype=torch.float64)
    fixed = torch.zeros(n, dtype=torch.bool)
    fixed[:3] = True
    denominators, numerators = [], []
    for sample in itertools.combinations(range(3, n), b):
        counts = torch.zeros(n)
        counts[list(sample)] = 1
        w = sample_weights(fixed, counts, torch.tensor(n_s), torch.tensor(b)).double()
        denominators.append((w * e).sum())
        numerators.append((w * e) @ values)
    assert torch.stack(denominators).mean().item() == pytest.approx(e.sum().item(), rel=1e-6)
    assert torch.stack(numerators).mean(0).numpy() == pytest.approx((e @ values).numpy(), rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"replacement": True}, {"nested": False}, {"adaptive": False, "base": 0.3}])
def test_weights_stand_for_every_key(options):
    logits, valid, _ = rows_of()
    chosen = select(logits, valid, VAttentionConfig(**{**SMALL, "base": 0.1, "epsilon": 0.1, **options}), generator(1))
    assert chosen.weights.sum(-1).numpy() == pytest.approx(200.0, rel=1e-5)


@pytest.mark.parametrize("options", [{"replacement": True}, {"adaptive": False}])
def test_selected_sums_are_unbiased(options):
    logits, valid, values = (x.repeat_interleave(2000, dim=0) for x in rows_of(n=60, rows=1, heads=1))
    config = VAttentionConfig(sink=2, window=2, heavy=3, base=0.3, **{"adaptive": False, **options})
    chosen = select(logits, valid[:1], config, generator(4))
    errors = row_errors(Exact.of(logits, valid[:1], values), chosen.weights, values).derr.flatten()
    assert abs(errors.mean()) < 4 * errors.std() / len(errors) ** 0.5
    assert errors.std() > 0.01


def test_a_shift_of_the_logits_changes_nothing():
    logits, valid, values = rows_of()
    config = VAttentionConfig(**SMALL, base=0.1, epsilon=0.1, mode="sdpa")
    one, other = (select(logits + shift, valid, config, generator(3), values=values) for shift in (0.0, 7.5))
    assert (one.b - other.b).abs().max() <= 1  # rounding of a float32 shift may tip a ceiling
    assert torch.equal(one.fixed, other.fixed)
    same = one.b == other.b
    assert same.float().mean() > 0.9
    a, b = (weighted_attention(logits + s, c.weights, values) for s, c in ((0.0, one), (7.5, other)))
    assert torch.allclose(a[same], b[same], atol=1e-4)


@pytest.mark.parametrize("mode", ["numerator", "sdpa"])
def test_the_scale_of_the_values_changes_no_budget(mode):
    logits, valid, values = rows_of()
    config = VAttentionConfig(**SMALL, base=0.1, epsilon=0.2, mode=mode)
    one, other = (select(logits, valid, config, generator(3), values=values * a) for a in (1.0, 64.0))
    assert torch.equal(one.b, other.b)


def test_budgets_follow_their_rows():
    logits, valid, _ = rows_of()
    config = VAttentionConfig(**SMALL, epsilon=0.1, oracle_stats=True)
    turned = [3, 0, 4, 2, 1]
    one = select(logits, valid, config, generator(0))
    other = select(logits[:, turned], valid, config, generator(1))
    assert torch.equal(one.b[:, turned], other.b)
    assert len(one.b.unique()) > 1


@pytest.mark.parametrize("delta", [0.05, 0.2])
@pytest.mark.parametrize("a", [1.0, 2.0])
def test_with_the_true_spread_the_bound_covers(a, delta):
    epsilon = 0.1
    g = generator(int(10 * a))
    logits = torch.randn(40, 1, 2000, generator=g) * a
    logits = logits.repeat_interleave(20, dim=0)
    valid = torch.ones(1, 2000, dtype=torch.bool)
    config = VAttentionConfig(sink=0, window=0, heavy=0.02, base=16, epsilon=epsilon, delta=delta, oracle_stats=True)
    chosen = select(logits, valid, config, generator(1))
    e = exponentials(logits, valid)
    missed = (((chosen.weights * e).sum(-1) / e.sum(-1) - 1).abs() > epsilon).float().view(40, 20).mean(1)
    assert missed.mean() <= delta + 3 * missed.std() / 40**0.5
    assert (chosen.b < chosen.n_s).all()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.0, 0.5), st.floats(0.0, 0.49))
def test_errors_of_both_sums_bound_that_of_their_quotient(seed, e1, e2):
    g = generator(seed)
    numerator, step = torch.randn(2, 4, generator=g, dtype=torch.float64)
    step = step / step.norm() * numerator.norm() * e1
    sign = 1.0 if seed % 2 else -1.0
    relative = ((numerator + step) / (1 + sign * e2) - numerator).norm() / numerator.norm()
    assert relative <= (e1 + e2) / (1 - e2) + 1e-9
    assert (e1 + e2) / (1 - e2) <= 2 * (e1 + e2) + 1e-12


@pytest.mark.parametrize("mode", ["denominator", "numerator", "sdpa"])
def test_a_row_of_which_nothing_was_seen_is_read_exactly(mode):
    logits = torch.full((1, 1, 500), -200.0)
    logits[..., 250] = 200.0  # the others' exponentials are zero beside it
    config = VAttentionConfig(sink=0, window=0, heavy=0, mode=mode)
    chosen = select(logits, torch.ones(1, 500, dtype=torch.bool), config, generator(0), values=torch.ones(1, 500, 2))
    assert chosen.b.item() == 500
    assert chosen.weights.unique().tolist() == [1.0]


def test_no_base_sample_leaves_top_k():
    logits, valid, _ = rows_of()
    chosen = select(logits, valid, VAttentionConfig(**SMALL, base=0), generator())
    assert torch.equal(chosen.weights, chosen.fixed.float())
    assert (chosen.read.sum(-1) == 14).all()


def test_scores_decide_what_is_heavy():
    logits, valid, _ = rows_of()
    scores = torch.zeros_like(logits)
    scores[..., 50:56] = 1.0
    chosen = select(logits, valid, VAttentionConfig(**SMALL, base=0), generator(), scores)
    assert chosen.read[..., 50:56].all()


def test_a_fresh_sample_differs_from_the_nested_one():
    logits, valid, _ = rows_of()
    nested, fresh = (select(logits, valid, VAttentionConfig(**SMALL, nested=n, epsilon=0.2), generator(1)) for n in (True, False))
    assert torch.equal(nested.b, fresh.b)
    assert not torch.equal(nested.weights, fresh.weights)


def test_the_smaller_budget_without_replacement():
    logits, valid, _ = rows_of()
    plain, fpc = (select(logits, valid, VAttentionConfig(**SMALL, epsilon=0.05, fpc=f), generator(1)) for f in (False, True))
    assert (fpc.b <= plain.b).all()
    assert (fpc.b < plain.b).any()


def test_a_method_gives_the_weights():
    logits, valid, _ = rows_of()
    config = VAttentionConfig(**SMALL)
    assert torch.equal(Vattention(config)(logits, valid, logits, generator(1)), select(logits, valid, config, generator(1)).weights)


def test_output_keeps_the_dtype_of_the_query():
    q, k, v = (x.bfloat16() for x in qkv())
    out, _ = attend(q, k, v, VAttentionConfig(heavy=1.0), generator())
    assert out.dtype == torch.bfloat16
    assert torch.allclose(out.float(), exact_attention(q, k, v), atol=2e-2)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": 1.0}, "epsilon"),
        ({"delta": -0.1}, "delta"),
        ({"delta": 1.5}, "delta"),
        ({"heavy": -1}, "heavy"),
        ({"sink": 1.5}, "sink"),
        ({"window": -0.1}, "window"),
        ({"base": True}, "base"),
        ({"base": float("nan")}, "base"),
        ({"mode": "ratio"}, "'denominator', 'numerator' or 'sdpa'"),
        ({"predictor": "guess"}, "'oracle', 'hashattention', 'simhash' or 'pq'"),
        ({"z": "both"}, "z"),
        ({"base_min": 1}, "base_min"),
        ({"top": 3}, "top"),
    ],
)
def test_impossible_configurations_are_refused_by_name(wrong, says):
    with pytest.raises(ValidationError, match=says) as caught:
        VAttentionConfig(**wrong)
    assert isinstance(caught.value, ValueError)


def test_whole_numbers_and_shares_stay_what_they_are():
    config = VAttentionConfig(sink=1, heavy=1.0)
    assert isinstance(config.sink, int)
    assert isinstance(config.heavy, float)


def test_the_numerator_needs_values():
    logits, valid, _ = rows_of()
    with pytest.raises(ValueError, match="mode 'sdpa' bounds"):
        select(logits, valid, VAttentionConfig(mode="sdpa"), generator())


def test_tensors_that_do_not_fit_are_refused():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="do not fit"):
        attend(q, k, v[:, :, :-1], VAttentionConfig(), generator())
    with pytest.raises(ValueError, match="must be a multiple"):
        attend(q[:, :3], k, v, VAttentionConfig(), generator())


def test_a_small_base_sample_is_warned_about():
    with pytest.warns(UserWarning, match="from 16 keys of 300; below 30"):
        warn_about(VAttentionConfig(base=0.01), 300)
