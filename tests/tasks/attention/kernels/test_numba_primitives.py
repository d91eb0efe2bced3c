from __future__ import annotations

import numba
import numpy as np
import torch
from scipy import stats

from tasks.attention.kernels.numba_primitives import as_float, count_bits, product, random_below


@numba.njit
def floats(x, out):
    for i in range(x.size):
        out[i] = as_float(x[i])


@numba.njit
def ones(x, out):
    for i in range(x.size):
        out[i] = count_bits(x[i])


@numba.njit
def draws(seed, n, out):
    state = np.empty(1, dtype=np.uint64)
    state[0] = np.uint64(seed)
    for i in range(out.size):
        out[i] = random_below(state, n)


@numba.njit
def inner(q, row):
    return product(q, row)


def test_every_bfloat16_is_read_exactly():
    bits = np.arange(2**16, dtype=np.uint16)
    out = np.empty(2**16, dtype=np.float32)
    floats(bits, out)
    expected = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float().numpy()
    assert np.array_equal(out, expected, equal_nan=True)
    floats(expected, out)
    assert np.array_equal(out, expected, equal_nan=True)


def test_bits_are_counted():
    x = np.random.default_rng(0).integers(0, 2**64, 1000, dtype=np.uint64)
    x[:3] = 0, 2**64 - 1, 2**63
    out = np.empty(1000, dtype=np.int64)
    ones(x, out)
    assert out.tolist() == [int(v).bit_count() for v in x]


def test_products_of_both_types():
    g = torch.Generator().manual_seed(0)
    q, row = torch.randn(100, generator=g), torch.randn(100, generator=g).to(torch.bfloat16)
    bits = row.view(torch.int16).numpy().view(np.uint16)
    expected = float(q.double() @ row.double())
    assert abs(inner(q.numpy(), bits) - expected) < 1e-4
    assert abs(inner(q.numpy(), row.float().numpy()) - expected) < 1e-4


def test_random_integers_are_uniform_and_follow_the_seed():
    found, again, other = (np.empty(60_000, dtype=np.int64) for _ in range(3))
    draws(1, 30, found)
    draws(1, 30, again)
    draws(2, 30, other)
    assert np.array_equal(found, again)
    assert (found != other).mean() > 0.9
    assert stats.chisquare(np.bincount(found, minlength=30)).pvalue > 1e-3
    assert stats.chisquare(np.bincount(found[:-1] * 30 + found[1:], minlength=900)).pvalue > 1e-3  # pairs, too
