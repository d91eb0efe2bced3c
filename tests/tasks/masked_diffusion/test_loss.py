from __future__ import annotations

import pytest
import torch

from tasks.masked_diffusion.loss import LEAST, draw_masks, frozen_prefix, masked_loss


def test_loss_is_the_weighted_sum_over_masked_tokens():
    generator = torch.Generator().manual_seed(0)
    logits, answers = torch.randn(2, 3, 4, generator=generator), torch.tensor([[0, 1, 2], [3, 3, 0]])
    masks, t = torch.tensor([[True, False, True], [False, True, False]]), torch.tensor([0.5, 0.25])
    slow = 0.0
    for b in range(2):
        for i in range(3):
            if masks[b, i]:
                slow -= float(logits[b, i].log_softmax(-1)[answers[b, i]]) / float(t[b])
    assert float(masked_loss(logits, answers, masks, t)) == pytest.approx(slow / 6, rel=1e-6)


def test_the_loss_is_an_unbiased_bound_at_every_level():
    """With uniform masks the expected weight of a token is P(masked) / t = 1, whatever t is."""
    masks, t = draw_masks(200_000, 4, 0.0, torch.Generator().manual_seed(1))
    assert float((masks / t[:, None]).mean()) == pytest.approx(1.0, abs=0.02)


def test_suffix_masks_are_suffixes_and_uniform_ones_are_not():
    masks, t = draw_masks(500, 10, 1.0, torch.Generator().manual_seed(2))
    assert torch.equal(masks.sum(1), torch.ceil(10 * t).long())
    assert bool((masks[:, 1:] >= masks[:, :-1]).all())
    masks, _ = draw_masks(500, 10, 0.0, torch.Generator().manual_seed(2))
    assert bool((masks[:, 1:] < masks[:, :-1]).any())


def test_the_mixture_has_its_share():
    masks, t = draw_masks(20_000, 12, 0.5, torch.Generator().manual_seed(3))
    suffix = (masks[:, 1:] >= masks[:, :-1]).all(1) & (masks.sum(1) == torch.ceil(12 * t))
    assert 0.5 < float(suffix.double().mean()) < 0.62  # uniform masks are suffixes at times
    assert bool((t >= LEAST).all())
    assert bool((t <= 1).all())


def test_a_share_outside_its_range_is_refused():
    with pytest.raises(ValueError, match=r"suffix_share must lie in \[0, 1\], got 1.5"):
        draw_masks(2, 3, 1.5, torch.Generator())


def test_a_frozen_prefix_looks_at_nothing_behind_it_and_the_rest_at_everything():
    masks, _ = draw_masks(200, 6, 0.5, torch.Generator().manual_seed(4))
    frozen = torch.arange(200) % 2 == 0
    allowed = frozen_prefix(masks, 3, frozen)
    assert bool(allowed[~frozen].all())
    for row, mask in zip(allowed[frozen], masks[frozen], strict=True):
        first = 3 + (int(mask.int().argmax()) if bool(mask.any()) else 6)
        for i in range(9):
            seen = range(9) if i >= first else range(max(3, i + 1))
            assert row[i].nonzero().flatten().tolist() == list(seen)


def test_levels_of_a_batch_are_spread_evenly():
    _, t = draw_masks(50, 6, 0.5, torch.Generator().manual_seed(5))
    assert torch.equal(((t - LEAST) / (1 - LEAST) * 50).floor().int(), torch.arange(50, dtype=torch.int32))
