from __future__ import annotations

import pytest
import torch

from tasks.language_models.cache import KeyValueCache, prefill


@pytest.fixture
def ids():
    return torch.randint(3, 300, (2, 40), generator=torch.Generator().manual_seed(0))


def whole(model, ids):
    """Logits without any cache: the slow twin."""
    with torch.inference_mode():
        return model(ids, use_cache=False).logits


def test_reading_in_pieces_gives_the_logits_of_reading_at_once(model, ids):
    cache, first = prefill(model, ids[:, :25])
    rest = cache.append(ids[:, 25:], keep=0)
    expected = whole(model, ids)
    torch.testing.assert_close(first[:, 0], expected[:, 24], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(rest, expected[:, 25:], atol=1e-4, rtol=1e-4)
    assert cache.length == 40


def test_after_a_crop_another_continuation_reads_as_if_the_first_had_never_been(model, ids):
    cache, _ = prefill(model, ids[:, :25])
    cache.append(ids[:, 25:33])
    cache.crop(25)
    assert cache.length == 25
    other = ids.flip(1)[:, :6]
    torch.testing.assert_close(cache.append(other, keep=0), whole(model, torch.cat([ids[:, :25], other], 1))[:, 25:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("length", [-1, 41])
def test_crop_refuses_lengths_that_are_not_stored(model, ids, length):
    cache, _ = prefill(model, ids)
    with pytest.raises(ValueError, match=r"length must lie in 0\.\.40"):
        cache.crop(length)


def test_crop_to_the_same_length_changes_nothing(model, ids):
    cache, _ = prefill(model, ids)
    keys = cache.layer(0)[0].clone()
    cache.crop(40)
    assert torch.equal(cache.layer(0)[0], keys)


def test_repeated_rows_are_neighbours_and_go_their_own_ways(model, ids):
    cache, _ = prefill(model, ids[:, :30])
    cache.batch_repeat(3)
    following = torch.arange(6)[:, None] + 50
    logits = cache.append(following)
    expected = whole(model, torch.cat([ids[:, :30].repeat_interleave(3, 0), following], 1))[:, -1:]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    cache.batch_select(torch.tensor([4, 0]))
    assert cache.layer(1)[0].shape[0] == 2


def test_a_fork_grows_without_its_origin(model, ids):
    cache, _ = prefill(model, ids[:, :30])
    twin = cache.fork()
    twin.append(ids[:, 30:])
    assert (cache.length, twin.length) == (30, 40)
    torch.testing.assert_close(cache.append(ids[:, 30:31]), whole(model, ids[:, :31])[:, -1:], atol=1e-4, rtol=1e-4)


def test_keys_have_one_head_per_group(model, ids):
    cache, _ = prefill(model, ids)
    keys, values = cache.layer(0)
    assert keys.shape == values.shape == (2, 2, 40, 16)
    assert cache.layers == 2


def test_bad_input_is_refused(model, ids):
    with pytest.raises(ValueError, match="at least 1"):
        prefill(model, ids)[0].batch_repeat(0)
    with pytest.raises(ValueError, match="T >= 1"):
        KeyValueCache(model).append(ids[:, :0])
    with pytest.raises(ValueError, match="max_position_embeddings"):
        KeyValueCache(model).append(torch.zeros(1, 8193, dtype=torch.int64))
