import math

import pytest
import torch

from tasks.language_models.scoring import kl_to_reference, perplexity
from tasks.low_rank.attention import attention_blocks
from tasks.low_rank.factorisations import HeadFactors
from tasks.low_rank.layers import merged
from tasks.low_rank.measurement import Reference, WeightErrors
from tasks.low_rank.selection import select, tune_model
from tests.tasks.low_rank.test_layers import factors, statistics
from tests.tasks.low_rank.tiny import positive, tiny_ids, tiny_model


def test_the_dense_model_does_not_diverge_from_itself():
    model, ids = tiny_model(), tiny_ids(5, 12)
    reference = Reference.of(model, ids)
    found = reference.quality(model)
    assert found.kl_nats < 1e-5
    assert found.nats == pytest.approx(reference.nats, rel=1e-9)
    assert found.perplexity == pytest.approx(perplexity(model, list(ids)), rel=1e-5)


def test_divergence_and_perplexity_are_the_plain_formulas():
    model, ids = tiny_model(), tiny_ids(5, 12)
    found = factors(model)
    reference = Reference.of(model, ids)
    dense = model(ids).logits[:, :-1].flatten(0, 1)
    with merged(model, found):
        other = model(ids).logits[:, :-1].flatten(0, 1)
        nats = math.log(perplexity(model, list(ids)))
    quality = reference.quality_with(model, found)
    assert quality.kl_nats == pytest.approx(kl_to_reference(dense, other), rel=1e-3)
    assert quality.nats == pytest.approx(nats, rel=1e-5)


def test_sequences_too_short_are_refused():
    with pytest.raises(ValueError, match="T >= 2"):
        Reference.of(tiny_model(), tiny_ids(3, 1))


def test_weight_errors_are_relative_and_zero_for_the_weight_itself():
    model = tiny_model()
    blocks = attention_blocks(model)
    errors = WeightErrors(blocks, statistics())
    full = factors(model, "head_white", kept=1 + 8 / 48)
    assert max(errors.of(full).values()) < 1e-6
    nothing = {key: HeadFactors(0 * f.A, f.B, f.ranks) for key, f in full.items()}
    assert errors.of(nothing) == pytest.approx({"weight_err": 1.0, "act_err": 1.0, "fisher_err": 1.0})
    half = errors.of(factors(model))
    assert half["weight_err"] == pytest.approx(half["fisher_err"], rel=1e-5)  # the Fisher information of these statistics is constant
    plain = errors.of(factors(model, "head_svd"))
    assert plain["weight_err"] < half["weight_err"]
    assert plain["act_err"] > half["act_err"]


def tuned_model(rate: float, steps: int = 8):
    model = tiny_model()
    blocks = attention_blocks(model)
    start = factors(model, projections=("k", "v"))
    weights = {(layer, p): positive(2, 48, 8, seed=layer) for layer, p in start}
    return model, tune_model(blocks, start, lambda layer, p: weights[layer, p], steps=steps, rate=rate, keep_every=2)


def test_the_iterate_with_the_lowest_held_out_divergence_is_chosen():
    model, tuned = tuned_model(rate=3e-3)
    assert tuned.kept == (0, 2, 4, 6, 8)
    reference = Reference.of(model, tiny_ids(4, 12))
    step, curve = select(tuned, model, reference)
    assert set(curve) == set(tuned.kept)
    assert curve[step] == min(curve.values())
    assert curve[step] == pytest.approx(reference.quality_with(model, tuned.factors(step, best=True)).kl_nats)
    assert tuned.objective()[-1] < tuned.objective()[0]


def test_a_harmful_descent_is_not_used():
    model, tuned = tuned_model(rate=10.0)
    step, _ = select(tuned, model, Reference.of(model, tiny_ids(4, 12)))
    assert step == 0
    for key, start in tuned.start.items():
        assert torch.equal(tuned.factors(0)[key].A, start.A)
        assert torch.equal(tuned.factors(8, best=True)[key].A, start.A)
        assert not torch.equal(tuned.factors(8)[key].A, start.A)


def test_only_factors_per_head_are_tuned():
    model = tiny_model()
    with pytest.raises(ValueError, match="one latent for all heads"):
        tune_model(attention_blocks(model), factors(model, "svdllm"), lambda layer, p: positive(2, 48, 8))


def test_projections_tuned_together_are_tuned_as_alone():
    model = tiny_model()
    blocks = attention_blocks(model)
    start = factors(model, projections=("k", "v"))
    weights = {(layer, p): positive(2, 48, 8, seed=layer) for layer, p in start}
    together = tune_model(blocks, start, lambda layer, p: weights[layer, p], steps=5, rate=3e-3, keep_every=5)
    alone = {key: factor for key, factor in start.items() if key == (1, "v")}
    single = tune_model(blocks, alone, lambda layer, p: weights[layer, p], steps=5, rate=3e-3, keep_every=5)
    torch.testing.assert_close(together.factors(5)[1, "v"].A, single.factors(5)[1, "v"].A, rtol=1e-4, atol=1e-6)
    assert list(together.paths) == list(start)
