from __future__ import annotations

import math

import pytest
import torch
from attention_cases import generator, qkv

from tasks.attention.baselines import Collisions
from tasks.attention.hash_attention import recall_at
from tasks.attention.predictors import (
    PREDICTORS,
    MagicPIG,
    ProductQuantised,
    SimHash,
    centred,
    collision_probability,
    kmeans,
    nearest,
    on_sphere,
    oracle,
)
from tasks.attention.weighted import causal_valid, scaled_logits


def case(n=600, rows=4, width=16):
    query, key, _ = qkv(heads=4, groups=2, rows=rows, n=n, width=width)
    return query, key, scaled_logits(query, key), causal_valid(rows, n)


def test_the_oracle_is_the_logits():
    query, key, logits, _ = case()
    assert oracle(0, query, key, logits) is logits


@pytest.mark.parametrize("predictor", [SimHash(bits=128), ProductQuantised()], ids=["simhash", "pq"])
def test_scores_rank_heavy_keys_far_better_than_chance(predictor):
    query, key, logits, valid = case()
    scores = predictor(0, query, key, logits)
    assert scores.shape == logits.shape
    assert recall_at(scores, logits, valid, 30).mean() > 6 * 30 / 600


@pytest.mark.parametrize("predictor", [SimHash(), MagicPIG()], ids=["simhash", "magicpig"])
def test_hashes_differ_between_layers_and_seeds_and_stay_the_same_within(predictor):
    query, key, logits, _ = case()
    again = type(predictor)()(3, query, key, logits)
    assert torch.equal(predictor(3, query, key, logits), again)
    assert not torch.equal(predictor(4, query, key, logits), again)
    assert not torch.equal(type(predictor)(seed=1)(3, query, key, logits), again)


@pytest.mark.parametrize("predictor", [SimHash(), MagicPIG()], ids=["simhash", "magicpig"])
def test_a_vector_added_to_all_keys_changes_nothing(predictor):
    query, key, logits, _ = case()
    key = (key * 64).round() / 64  # so that the sums are exact
    moved = key + torch.randint(-4, 5, (1, key.shape[1], 1, key.shape[-1]), generator=generator(1))
    one, two = predictor(0, query, key, logits), predictor(0, query, moved, logits)
    assert (~torch.isclose(one, two, rtol=1e-3)).float().mean() < 0.002  # a sign may turn where a projection is almost 0


def test_simhash_agreement_estimates_the_angle():
    query, key, logits, _ = case()
    k = centred(key).repeat_interleave(2, 1)
    cosine = torch.nn.functional.cosine_similarity(query[:, :, :, None], k[:, :, None], dim=-1)
    expected = 1 - 2 * torch.arccos(cosine) / math.pi
    found = SimHash(bits=4096)(0, query, key, logits) / 4096
    assert (found - expected).abs().max() < 0.09  # about 5.5 standard errors of 4096 bits


def test_products_with_rounded_keys_are_exact_where_keys_repeat_few_pieces():
    few = torch.randn(1, 2, 1, 16, generator=generator()).expand(1, 2, 50, 16) * torch.tensor([1.0, -1.0]).repeat(25)[:, None]
    query, _, _ = qkv(heads=4, groups=2, rows=2, n=50, width=16)
    scores = ProductQuantised(bits=5)(0, query, few, torch.empty(0))
    torch.testing.assert_close(scores, scaled_logits(query, few), atol=1e-4, rtol=1e-4)


def test_kmeans_never_raises_the_distance_and_finds_separate_clusters():
    centers = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    points = (centers[torch.arange(90) % 3] + torch.randn(90, 2, generator=generator()))[None]
    start = points[:, :3]
    losses = []
    for iterations in range(5):
        found, codes = kmeans(points, start, iterations)
        losses.append(float((points - found.gather(1, codes[..., None].expand(-1, -1, 2))).square().sum()))
    assert losses == sorted(losses, reverse=True)
    assert torch.cdist(found[0], centers).min(1).values.max() < 1


def test_nearest_is_the_smallest_distance():
    points, centroids = torch.randn(3, 40, 2, generator=generator()), torch.randn(3, 7, 2, generator=generator(1))
    assert torch.equal(nearest(points, centroids), torch.cdist(points, centroids).argmin(-1))


def test_a_cluster_without_points_stays():
    points, start = torch.zeros(1, 5, 2), torch.tensor([[[0.0, 0.0], [9.0, 9.0]]])
    found, codes = kmeans(points, start, 3)
    assert found[0, 1].tolist() == [9.0, 9.0]
    assert codes.unique().tolist() == [0]


def test_the_sphere_keeps_the_order_of_products():
    query, key, _, _ = case()
    q, k = on_sphere(query, key)
    for vectors in (q, k):
        torch.testing.assert_close(torch.linalg.vector_norm(vectors, dim=-1), torch.ones(vectors.shape[:-1]))
    products = scaled_logits(query, centred(key), 1.0)
    assert torch.equal(scaled_logits(q, k, 1.0).argsort(-1)[..., -50:], products.argsort(-1)[..., -50:])


def test_hits_are_equal_codes_table_by_table():
    """The slow twin: signs of every plane, compared bit by bit."""
    query, key, _, _ = case(n=60)
    q, k = on_sphere(query, key)
    pig = MagicPIG(bits=3, tables=11, seed=5)
    planes = torch.randn(17, 33, generator=generator(5 * 1_000_003 + 2))
    signs_q, signs_k = ((x @ planes >= 0).unflatten(-1, (11, 3)) for x in (q, k.repeat_interleave(2, 1)))
    expected = (signs_q[:, :, :, None] == signs_k[:, :, None]).all(-1).sum(-1)
    assert torch.equal(pig.hits(2, q, k).long(), expected)


@pytest.mark.parametrize("least", [1, 2])
def test_the_probability_of_a_hit_is_its_frequency(least):
    cosine = torch.tensor([-0.5, 0.0, 0.5, 0.8])
    q = torch.tensor([1.0, 0.0]).expand(4, 1, 1, 2)
    k = torch.stack([cosine, (1 - cosine**2).sqrt()], -1)[:, None, None]
    draws = torch.stack([MagicPIG(bits=2, tables=5, least=least, seed=s).hits(0, q, k).flatten() >= least for s in range(1500)])
    expected = collision_probability(cosine, 2, 5, least)
    error = (expected * (1 - expected) / 1500).sqrt()
    assert ((draws.float().mean(0) - expected).abs() < 4 * error).all()


@pytest.mark.parametrize("least", [1, 2])
def test_weights_of_colliding_keys_make_sums_unbiased(least):
    """Averaged over many tables, the weighted sum of exponentials is the sum over all keys."""
    query, key, logits, valid = case(n=40, rows=1)
    e = torch.exp(logits - logits.amax(-1, keepdim=True))
    method, found = Collisions(sink=0, window=0), []
    for seed in range(600):
        pig = MagicPIG(bits=2, tables=8, least=least, seed=seed)
        weights = method(logits, valid, pig(0, query, key, logits), generator())
        found.append((weights * e).sum(-1).flatten())
    draws = torch.stack(found)
    error = draws.std(0) / math.sqrt(600)
    assert ((draws.mean(0) - e.sum(-1).flatten()).abs() < 4 * error).all()


def test_more_tables_read_more_keys():
    query, key, logits, _ = case()
    few, many = ((MagicPIG(tables=t)(0, query, key, logits) > 0).float().mean() for t in (20, 75))
    assert few < many < 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SimHash(bits=0), "bits must be at least 1"),
        (lambda: ProductQuantised(bits=0), "bits must be at least 1"),
        (lambda: ProductQuantised(iterations=-1), "iterations must be at least 0"),
        (lambda: MagicPIG(tables=0), "tables must be at least 1"),
        (lambda: MagicPIG(bits=16), "bits must be at most 15"),
        (lambda: MagicPIG(least=3), "least must be 1 or 2"),
        (lambda: ProductQuantised(piece=3)(0, torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 5, 8), torch.empty(0)), "divide the head width 8"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_names_of_the_configuration_are_known():
    assert set(PREDICTORS) == {"oracle", "simhash", "pq"}
    query, key, logits, _ = case(n=80)
    for make in PREDICTORS.values():
        assert make()(0, query, key, logits).shape == logits.shape
