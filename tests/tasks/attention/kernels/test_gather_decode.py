from __future__ import annotations

import pytest
import torch
from decode_cases import HEADS, TOLERANCE, dense_masked, random_weights, step

from tasks.attention.kernels.gather_decode import check_decode, dense_variants, index_lists, sparse_decode


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "groups"), HEADS)
def test_gathering_is_the_dense_masked_formula(heads, groups, dtype):
    query, keys, values = step(heads, groups, dtype=dtype, value_width=24)
    weights = random_weights(heads, 300)
    found = sparse_decode(query, keys, values, *index_lists(weights))
    torch.testing.assert_close(found, dense_masked(query, keys, values, weights), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_lists_hold_exactly_what_is_read_in_order():
    weights = random_weights(6, 300)
    indices, listed = index_lists(weights)
    back = torch.zeros(6, 300)
    for h in range(6):
        kept = listed[h] > 0
        assert indices[h, kept].tolist() == sorted(indices[h, kept].tolist())
        back[h, indices[h, kept].long()] = listed[h, kept]
    assert torch.equal(back, weights)
    assert indices.shape[1] == (weights > 0).sum(-1).max()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "groups"), HEADS)
def test_every_dense_variant_is_exact_attention(heads, groups, dtype):
    query, keys, values = step(heads, groups, dtype=dtype)
    for scaling in (None, 0.3):
        expected = dense_masked(query, keys, values, torch.ones(heads, 300), scaling)
        for name, run in dense_variants(query, keys, values, scaling).items():
            torch.testing.assert_close(run().float(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype], msg=name)


def test_a_head_that_reads_nothing_gives_zero_and_huge_unread_logits_do_no_harm():
    query, keys, values = step()
    weights = random_weights(6, 300)
    weights[2] = 0
    found = sparse_decode(query, keys, values, *index_lists(weights))
    assert torch.equal(found[2], torch.zeros(32))
    keys[:, 299] = 1e4  # read by no one
    weights[:, 299] = 0
    indices, listed = index_lists(weights)
    padded = torch.cat([indices, torch.full((6, 3), 299, dtype=torch.int32)], 1), torch.cat([listed, torch.zeros(6, 3)], 1)
    torch.testing.assert_close(
        sparse_decode(query, keys, values, *padded), dense_masked(query, keys, values, weights), atol=1e-5, rtol=1e-5
    )


def test_shapes_that_do_not_fit_are_named():
    query, keys, values = step()
    indices, weights = index_lists(random_weights(6, 300))
    for arguments, message in (
        ((query[None], keys, values), r"need query \(H, d\)"),
        ((query[:, :5], keys, values), "do not fit"),
        ((query[:5], keys, values), "5 query heads cannot share 2"),
        ((query, keys, values, indices[:, :3], weights), "indices and weights must be"),
        ((query, keys, values, indices + 400, weights), r"indices must lie in 0\.\.299"),
    ):
        with pytest.raises(ValueError, match=message):
            check_decode(*arguments)
