"""Outliers before and after rotations."""

import numpy as np
import pytest
import torch

from tasks.low_rank.outliers import BINS, Rounded, inputs_of, outliers
from tests.tasks.low_rank.test_layers import factors
from tests.tasks.low_rank.tiny import randn, tiny_ids, tiny_model


def test_a_single_large_number_is_the_root_of_the_width_and_a_constant_is_one():
    spike = torch.zeros(3, 64)
    spike[:, 5] = -7.0
    assert Rounded.of(spike).peak == pytest.approx(8.0)
    assert Rounded.of(torch.full((3, 64), -0.2)).peak == pytest.approx(1.0)


def test_histograms_are_shares_and_count_what_lies_beyond_at_the_ends():
    spike = torch.zeros(1, 1024)
    spike[0, 0] = 3.0  # 32 times the root mean square
    found = Rounded.of(spike)
    assert found.counts.shape == (BINS,)
    assert found.counts.sum() == pytest.approx(1.0)
    assert found.counts[-1] == pytest.approx(1 / 1024)


def test_a_rotation_spreads_one_large_channel():
    model = tiny_model()
    head = factors(model)[1, "k"]
    x = torch.zeros(5, 48)
    x[:, 3] = 1.0
    r = head.A.shape[2]
    found = outliers(x, head, torch.eye(r).expand(len(head.A), r, r))
    assert found["input_plain"].peak == pytest.approx(48**0.5, rel=1e-5)
    assert found["input_rotated"].peak == pytest.approx(3**0.5, rel=1e-5)  # blocks of 16: 16 of 48 numbers are alike
    np.testing.assert_array_equal(found["latent_rotated"].counts, found["latent_plain"].counts)


def test_latents_are_rotated_by_s2():
    model = tiny_model()
    head = factors(model)[0, "k"]
    turn = torch.linalg.qr(randn(len(head.A), head.A.shape[2], head.A.shape[2]))[0]
    x = randn(6, 48)
    expected = Rounded.of(torch.stack([x @ a @ s.T for a, s in zip(head.A, turn, strict=True)], dim=1))
    assert outliers(x, head, turn)["latent_rotated"].peak == pytest.approx(expected.peak, rel=1e-5)


def test_inputs_are_what_the_projection_sees():
    model, ids = tiny_model(), tiny_ids(2, 7)
    seen = inputs_of(model, ids, 0)
    expected = model.model.layers[0].input_layernorm(model.model.embed_tokens(ids)).flatten(0, 1)
    torch.testing.assert_close(seen, expected)
    assert not model.model.layers[0].self_attn.k_proj._forward_pre_hooks
