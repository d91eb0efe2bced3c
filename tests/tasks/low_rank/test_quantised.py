"""Quantised projections in a tiny model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.low_rank.attention import attention_blocks
from tasks.low_rank.fine_tuning import element_weights, weighted_error
from tasks.low_rank.layers import PerHeadLowRankLinear
from tasks.low_rank.methods import spectra_of, truncated
from tasks.low_rank.quantised import PLAIN, ROTATED, in_place, quantised_modules, rounded_modules
from tasks.low_rank.vision_language_evaluation import Asked, VisionLanguageParams, calibrated
from tasks.quantisation.quantised_training import QuantisationParams
from tasks.quantisation.rotations import block_rotation
from tasks.vision_language.digit_grid import draw_grids, split_digits
from tasks.vision_language.tiny_llava import TinyLlavaParams, make_tiny_llava

TINY = TinyLlavaParams(steps=3, batch=4, turns=2, hidden=32, heads=2, layers=2, vision_hidden=16, seeds=2, test_images=10, workers=1)
SHORT = VisionLanguageParams(
    seeds=2, calibration=16, held_out=6, turns=2, questions=12, test_turns=2, steps=2, keep_every=1, training=QuantisationParams(steps=2)
)


@pytest.fixture(scope="module")
def case():
    """A tiny LLaVA with factors of its keys and values, and what calibration knows of it."""
    model = make_tiny_llava(TINY, 0).eval()
    blocks = attention_blocks(model)
    statistics = calibrated(model, split_digits(0)[0], SHORT, 0)
    factors = truncated("head_white", spectra_of("head_white", blocks, statistics, ("k", "v")), blocks, 0.5, None, ("k", "v"))
    return model, blocks, statistics, factors


def projected(modules, key, x):
    with torch.inference_mode():
        return modules[key](x)


def activations(seed: int = 0) -> torch.Tensor:
    return torch.randn(3, 7, 32, generator=torch.Generator().manual_seed(seed))


def test_sixteen_bits_are_the_factors_themselves(case):
    _, blocks, statistics, factors = case
    off = QuantisationParams(weight_bits=16, activation_bits=16, steps=0)
    modules, _ = quantised_modules(factors, blocks, statistics, off, 0)
    x = activations()
    for key, found in factors.items():
        torch.testing.assert_close(projected(modules, key, x), x @ found.weight().T, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rotate_input", [True, False])
def test_a_module_computes_rounded_latents_times_rounded_factors(case, rotate_input):
    from tasks.quantisation.quantisers import fake_quantise
    from tasks.quantisation.rotations import rotate

    _, blocks, statistics, factors = case
    modules, trained = quantised_modules(factors, blocks, statistics, QuantisationParams(steps=2, rotate_input=rotate_input), 0)
    x, key = activations(), (1, "v")
    seen = fake_quantise(rotate(x) if rotate_input else x, 8)
    latents = fake_quantise(torch.einsum("bte,her->bthr", seen, trained[key].A), 8)
    expected = torch.einsum("bthr,hrd->bthd", latents, trained[key].B).flatten(2)
    torch.testing.assert_close(projected(modules, key, x), expected, atol=1e-5, rtol=1e-5)
    assert isinstance(modules[key], PerHeadLowRankLinear)


@pytest.mark.parametrize("rotate_input", [True, False])
def test_training_minimises_the_error_under_the_fisher_information_of_what_is_rounded(case, rotate_input):
    _, blocks, statistics, factors = case
    _, trained = quantised_modules(factors, blocks, statistics, QuantisationParams(weight_bits=4, steps=2, rotate_input=rotate_input), 0)
    for (layer, p), found in trained.items():
        fisher = (statistics[layer].fisher_rotated if rotate_input else statistics[layer].fisher)[p]
        W = blocks[layer].weight(p)
        target = block_rotation(32) @ W if rotate_input else W
        assert found.error == pytest.approx(float(weighted_error(element_weights(fisher), target, found.A, found.B)), rel=1e-3)


def test_starts_of_rotations_follow_seed_layer_and_projection(case):
    _, blocks, statistics, factors = case
    how = QuantisationParams(steps=0)
    first, again, other = (quantised_modules(factors, blocks, statistics, how, seed)[1] for seed in (0, 0, 1))
    assert torch.equal(first[0, "k"].latent_rotation, again[0, "k"].latent_rotation)
    for different in (other[0, "k"], first[1, "k"], first[0, "v"]):
        assert not torch.equal(first[0, "k"].latent_rotation, different.latent_rotation)


def test_plain_rounding_neither_rotates_nor_trains(case):
    _, blocks, statistics, factors = case
    _, trained = quantised_modules(factors, blocks, statistics, PLAIN, 0)
    found, key = trained[0, "k"], (0, "k")
    assert torch.equal(found.latent_rotation, torch.eye(found.A.shape[2]).expand_as(found.latent_rotation))
    assert (found.A - factors[key].A).abs().max() <= factors[key].A.abs().amax(1).max() / 127 / 2 * 1.001
    assert len(found.objective) == 1


def test_a_joint_latent_is_rotated_alike_for_its_owners_and_rounded(case):
    _, blocks, statistics, _ = case
    joint = truncated("qsvd", spectra_of("qsvd", blocks, statistics, ("k", "v")), blocks, 0.5, None, ("k", "v"))
    exact = ROTATED.model_copy(update={"weight_bits": 16, "activation_bits": 16})
    modules, trained = quantised_modules(joint, blocks, statistics, exact, 0)
    assert torch.equal(trained[0, "k"].latent_rotation, trained[0, "v"].latent_rotation)
    assert not torch.equal(trained[0, "k"].latent_rotation, trained[1, "k"].latent_rotation)
    x = activations()
    for key, found in joint.items():
        torch.testing.assert_close(projected(modules, key, x), x @ found.weight().T, atol=1e-4, rtol=1e-4)
        assert torch.equal(modules[key].A[0], modules[key[0], "k"].A[0])  # one latent is cached
    eight, _ = quantised_modules(joint, blocks, statistics, ROTATED, 0)
    for key in joint:
        off = (projected(eight, key, x) - projected(modules, key, x)).abs().max() / projected(modules, key, x).abs().max()
        assert 0 < off < 0.05


def test_missing_rotated_fisher_and_shared_factors_are_refused(case):
    _, blocks, statistics, factors = case
    from dataclasses import replace

    blind = [replace(layer, fisher_rotated={}) for layer in statistics]
    with pytest.raises(ValueError, match="no rotated Fisher information; it is collected for keys and values"):
        quantised_modules(factors, blocks, blind, QuantisationParams(), 0)
    shared = truncated("svdllm", spectra_of("svdllm", blocks, statistics, ("k",)), blocks, 0.5, None, ("k",))
    with pytest.raises(ValueError, match="only factors per head are trained here, say steps=0"):
        quantised_modules(shared, blocks, statistics, QuantisationParams(), 0)


def test_modules_stand_in_the_model_inside_the_block_only(case):
    model, blocks, statistics, factors = case
    asked = Asked(model, draw_grids(split_digits(0)[1], 6, 1, ["read"], np.random.default_rng(0)))
    modules, _ = quantised_modules(factors, blocks, statistics, QuantisationParams(weight_bits=3, activation_bits=3, steps=0), 0)
    with in_place(blocks, modules):
        assert asked.answers(model).kl_nats > 1e-6
    assert asked.answers(model).kl_nats < 1e-9
    with in_place(blocks, rounded_modules(blocks, ("k", "v"), 16, 16, hadamard=True)):
        assert asked.answers(model).kl_nats < 1e-6


def test_rounding_stays_in_float32_inside_a_bfloat16_model(case):
    from copy import deepcopy

    _, blocks, _, _ = case
    x = activations()
    half = deepcopy(blocks[1].module).bfloat16()
    block = type(blocks[1])(blocks[1].name, half, blocks[1].head_dim)
    exact = rounded_modules([block], ["k"], 8, 8, hadamard=False)
    with in_place([block], exact):
        found = half.k_proj(x.bfloat16())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, exact[0, "k"](x.bfloat16().float()).bfloat16())
    assert len(exact[0, "k"].weight.div(exact[0, "k"].weight.abs().amax(1, keepdim=True) / 127).round().unique()) > 100
    assert isinstance(half.k_proj, torch.nn.Linear)
