from __future__ import annotations

import pytest
import torch
from decode_cases import HEADS, dense_masked, random_weights, step

from tasks.attention.kernels.gather_decode import index_lists
from tasks.attention.kernels.numba_decode import dense_decode, sparse_decode


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "groups"), HEADS)
def test_the_kernel_is_the_dense_masked_formula(heads, groups, dtype):
    """Bfloat16 caches are widened exactly and summed in float32, so that 1e-5 holds for them, too."""
    query, keys, values = step(heads, groups, dtype=dtype, value_width=24)
    weights = random_weights(heads, 300)
    found = sparse_decode(query, keys, values, *index_lists(weights))
    torch.testing.assert_close(found, dense_masked(query, keys, values, weights), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_dense_twin_is_exact_attention(dtype):
    query, keys, values = step(dtype=dtype, value_width=24)
    torch.testing.assert_close(
        dense_decode(query, keys, values), dense_masked(query, keys, values, torch.ones(6, 300)), atol=1e-5, rtol=1e-5
    )


def test_weights_of_one_on_all_keys_are_the_dense_twin():
    query, keys, values = step()
    every = torch.arange(300, dtype=torch.int32).expand(6, 300)
    torch.testing.assert_close(sparse_decode(query, keys, values, every, torch.ones(6, 300)), dense_decode(query, keys, values))


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_change_nothing(threads):
    query, keys, values = step()
    lists = index_lists(random_weights(6, 300))
    assert torch.equal(sparse_decode(query, keys, values, *lists, threads=threads), sparse_decode(query, keys, values, *lists))
    assert torch.equal(dense_decode(query, keys, values, threads=threads), dense_decode(query, keys, values))


def test_another_scaling_and_a_cache_that_is_a_view():
    query, keys, values = step()
    weights = random_weights(6, 300)
    roomy_k, roomy_v = (torch.cat([x, torch.full_like(x, 1e9)], 1)[:, :300] for x in (keys, values))
    found = sparse_decode(query, roomy_k, roomy_v, *index_lists(weights), 0.05)
    torch.testing.assert_close(found, dense_masked(query, keys, values, weights, 0.05), atol=1e-5, rtol=1e-5)


def test_large_logits_and_empty_heads():
    query, keys, values = step()
    weights = random_weights(6, 300)
    weights[1] = 0
    found = sparse_decode(query * 1000, keys, values, *index_lists(weights))
    torch.testing.assert_close(found, dense_masked(query * 1000, keys, values, weights), atol=1e-4, rtol=1e-4)
    assert torch.equal(found[1], torch.zeros(32))


def test_bad_input_is_refused():
    query, keys, values = step()
    lists = index_lists(random_weights(6, 300))
    with pytest.raises(ValueError, match=r"keys must be float32 or bfloat16 on the CPU, got torch\.float16"):
        sparse_decode(query, keys.half(), values.half(), *lists)
    with pytest.raises(ValueError, match="threads must be at least 1"):
        sparse_decode(query, keys, values, *lists, threads=0)
    with pytest.raises(ValueError, match="cannot share"):
        dense_decode(query[:5], keys, values)
