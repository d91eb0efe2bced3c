"""The kernel's source under a stand-in for Triton; on a machine with a CUDA device the same cases run on it."""

from __future__ import annotations

import sys

import interpreted_triton
import pytest
import torch
from decode_cases import HEADS, TOLERANCE, dense_masked, random_weights, step

from tasks.attention.kernels import triton_decode
from tasks.attention.kernels.gather_decode import index_lists
from tasks.attention.kernels.triton_decode import check_batch, sparse_decode

CUDA = torch.cuda.is_available()


@pytest.fixture
def device(monkeypatch):
    """The real thing where there is one, else the stand-in on the CPU."""
    triton_decode._kernel.cache_clear()
    if not CUDA:
        interpreted_triton.install(monkeypatch)
        monkeypatch.setattr(triton_decode, "check_batch", lambda *_: None)
    yield "cuda" if CUDA else "cpu"
    triton_decode._kernel.cache_clear()


def run(device, query, keys, values, indices, weights, scaling=None, splits=2):
    moved = (x.to(device) for x in (query, keys, values, indices, weights))
    return sparse_decode(*moved, scaling, splits=splits).cpu()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "groups"), HEADS)
def test_the_kernel_is_the_dense_masked_formula(device, heads, groups, dtype):
    query, keys, values = step(heads, groups, width=24, value_width=40, dtype=dtype)
    weights = random_weights(heads, 300, share=0.4)
    found = run(device, query.to(dtype), keys, values, *index_lists(weights))
    expected = dense_masked(query.to(dtype), keys, values, weights)
    torch.testing.assert_close(found, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("splits", [1, 2, 3, 50])
def test_the_number_of_parts_changes_nothing(device, splits):
    query, keys, values = step()
    weights = random_weights(6, 300, share=0.6)
    found = run(device, query, keys, values, *index_lists(weights), 0.2, splits=splits)
    torch.testing.assert_close(found, dense_masked(query, keys, values, weights, 0.2), atol=1e-5, rtol=1e-5)


def test_sequences_of_a_batch_are_each_by_itself(device):
    cases = [step(seed=s) for s in range(3)]
    lists = [index_lists(random_weights(6, 300, seed=s)) for s in range(3)]
    longest = max(i.shape[1] for i, _ in lists)
    padded = [tuple(torch.nn.functional.pad(x, (0, longest - x.shape[1])) for x in pair) for pair in lists]
    batch = [torch.stack(parts) for parts in (*zip(*cases, strict=True), *zip(*padded, strict=True))]
    found = run(device, *batch)
    for b, (case, pair) in enumerate(zip(cases, lists, strict=True)):
        torch.testing.assert_close(found[b], run(device, *case, *pair), atol=1e-5, rtol=1e-5)


def test_a_head_that_reads_nothing_gives_zero_and_large_logits_are_finite(device):
    query, keys, values = step()
    weights = random_weights(6, 300)
    weights[4] = 0
    found = run(device, query * 300, keys, values, *index_lists(weights))
    assert torch.equal(found[4], torch.zeros(32))
    torch.testing.assert_close(found, dense_masked(query * 300, keys, values, weights), atol=1e-4, rtol=1e-4)


def test_what_the_kernel_cannot_read_is_refused():
    query, keys, values = step()
    lists = index_lists(random_weights(6, 300))
    with pytest.raises(ValueError, match="runs on a CUDA device, got tensors on cpu"):
        sparse_decode(query, keys, values, *lists)
    meta = torch.device("meta")

    class OnDevice(torch.Tensor):
        is_cuda = True

    def fake(*shape):
        return torch.empty(shape, device=meta).as_subclass(OnDevice)

    fits = fake(1, 6, 32), fake(1, 2, 300, 32), fake(1, 2, 300, 32), fake(1, 6, 9), fake(1, 6, 9)
    check_batch(*fits)
    for at, wrong, message in (
        (1, fake(1, 2, 300, 31), "do not fit"),
        (0, fake(1, 5, 32), "heads a multiple"),
        (0, fake(2, 6, 32), "equal batches"),
        (3, fake(1, 6, 8), "indices and weights must be"),
    ):
        given = list(fits)
        given[at] = wrong
        with pytest.raises(ValueError, match=message):
            check_batch(*given)


def test_without_triton_the_message_says_how_to_get_it(monkeypatch):
    triton_decode._kernel.cache_clear()
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ImportError, match="pip install triton"):
        triton_decode._kernel()
