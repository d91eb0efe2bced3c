from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.conformal import imputation
from tasks.conformal.imputation import ResidualPools, impute
from tasks.conformal.intervals import cqr_scores
from tasks.conformal.quantiles import conformal_quantile

CLEAN = np.zeros(8, bool)


def test_discrete_z_is_matched_exactly():
    z = np.repeat([0.0, 1.0], 50)
    pools = ResidualPools(z, np.where(z == 0, 10.0, 20.0) + np.tile(np.arange(50), 2) / 100, np.zeros(100, bool))
    drawn = pools.draw(z, np.random.default_rng(0).random(100))
    assert ((drawn >= 20) == (z == 1)).all()
    assert not pools.fallback(z).any()


def test_draws_follow_the_law_of_the_pool():
    residuals = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    pools = ResidualPools(np.zeros(5), residuals, np.zeros(5, bool))
    drawn = pools.draw(np.zeros(5), (np.arange(5) + 0.5) / 5)
    np.testing.assert_array_equal(np.sort(drawn), residuals)  # a uniform in each fifth takes each residual once


def test_a_value_never_seen_takes_the_nearest_clean_rows():
    z = np.repeat([0.0, 1.0], 30)
    pools = ResidualPools(z, np.where(z == 0, -1.0, 1.0), np.zeros(60, bool))
    assert pools.fallback([0.9, 0.1]).all()
    assert pools.draw([0.9, 0.1], np.array([0.5, 0.5])).tolist() == [1.0, -1.0]


def test_small_pools_fall_back_to_the_nearest_twenty_or_all():
    # Z = 5 has 4 clean residuals, fewer than 5: the 20 nearest clean rows hold them and 16 of Z = 4.
    z = np.array([0.0] * 30 + [4.0] * 30 + [5.0] * 4)
    pools = ResidualPools(z, z, np.zeros(64, bool))
    drawn = pools.draw(np.full(1000, 5.0), (np.arange(1000) + 0.5) / 1000)
    assert set(drawn) == {4.0, 5.0}
    assert (drawn == 5.0).mean() == pytest.approx(4 / 20)
    near = ResidualPools(z, z, np.zeros(64, bool), neighbours=4)
    assert set(near.draw(np.full(100, 5.0), (np.arange(100) + 0.5) / 100)) == {5.0}
    few = ResidualPools([0.0, 1.0, 2.0], [7.0, 8.0, 9.0], np.zeros(3, bool))
    assert set(few.draw(np.full(300, 9.0), (np.arange(300) + 0.5) / 300)) == {7.0, 8.0, 9.0}


def test_continuous_z_is_clustered_and_one_cluster_is_global():
    rng = np.random.default_rng(0)
    z = np.concatenate([rng.normal(0, 0.1, 200), rng.normal(9, 0.1, 200)])
    residuals = np.repeat([-1.0, 1.0], 200)
    two = ResidualPools(z, residuals, np.zeros(400, bool), clusters=2)
    assert two.draw([0.0, 9.0], np.array([0.3, 0.3])).tolist() == [-1.0, 1.0]
    everything = ResidualPools(z, residuals, np.zeros(400, bool), clusters=1)
    assert len(everything.pools) == 1
    assert everything.pools[0].size == 400
    discrete = ResidualPools(np.repeat([0.0, 1.0], 200), residuals, np.zeros(400, bool), clusters=1)
    assert len(discrete.pools) == 1


def test_only_clean_reference_rows_give_residuals():
    masked = np.array([False] * 10 + [True] * 10)
    residuals = np.where(masked, np.nan, 1.0)
    pools = ResidualPools(np.zeros(20), residuals, masked)
    assert (pools.draw(np.zeros(50), np.random.default_rng(0).random(50)) == 1.0).all()


def test_order_of_rows_changes_nothing():
    rng = np.random.default_rng(3)
    z, e, masked = rng.standard_normal((300, 2)), rng.standard_normal(300), rng.random(300) < 0.3
    ask, u = rng.standard_normal((80, 2)), rng.random(80)
    drawn = ResidualPools(z, e, masked, seed=1).draw(ask, u)
    order, asked = rng.permutation(300), rng.permutation(80)
    again = ResidualPools(z[order], e[order], masked[order], seed=1).draw(ask[asked], u[asked])
    np.testing.assert_array_equal(again, drawn[asked])


def drawn_by_rule(z, residuals, masked, ask, uniforms, seed):
    """Row by row: same Z (few values) or same cluster of all reference rows, else the 20 nearest clean rows."""
    from sklearn.cluster import KMeans

    scaled, asked = (z - z.mean(axis=0)) / z.std(axis=0), (ask - z.mean(axis=0)) / z.std(axis=0)
    if len(np.unique(z, axis=0)) <= 20:
        same = [(z == q).all(axis=1) for q in ask]
    else:
        means = KMeans(20, n_init=1, random_state=seed).fit(scaled[np.lexsort(scaled.T)])
        same = [means.predict(scaled) == k for k in means.predict(asked)]
    drawn = []
    for q, like, u in zip(asked, same, uniforms, strict=True):
        pool = residuals[like & ~masked]
        if pool.size < 5:
            pool = residuals[~masked][np.argsort(((scaled[~masked] - q) ** 2).sum(axis=1), kind="stable")[:20]]
        drawn.append(np.sort(pool)[int(u * pool.size)])
    return drawn


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("values", [15, None])
def test_draws_are_those_of_the_rule_row_by_row(columns, values):
    rng = np.random.default_rng(8)
    kinds = values if columns == 1 or values is None else 4

    def some(n, beyond=0):
        return rng.standard_normal((n, columns)) if kinds is None else rng.integers(0, kinds + beyond, (n, columns)).astype(float)

    z, ask, u = some(600), some(300, beyond=2), rng.random(300)
    masked = rng.random(600) < np.where(z[:, 0] > np.quantile(z[:, 0], 0.75), 0.97, 0.1)
    residuals = np.where(masked, np.nan, rng.standard_normal(600))
    pools = ResidualPools(z, residuals, masked, seed=3)
    np.testing.assert_array_equal(pools.draw(ask, u), drawn_by_rule(z, residuals, masked, ask, u, seed=3))
    assert 0.05 < pools.fallback(ask).mean() < 0.6  # both branches are tried


def test_many_fallbacks_are_drawn_in_pieces(monkeypatch):
    rng = np.random.default_rng(9)
    z, ask, u = rng.random(100), rng.random(70) + 3, rng.random(70)
    pools = ResidualPools(np.round(z, 1), z, np.zeros(100, bool))
    whole = pools.draw(ask, u)
    monkeypatch.setattr(imputation, "LARGEST_TABLE", 300)
    np.testing.assert_array_equal(pools.draw(ask, u), whole)


def test_a_constant_column_of_z_does_not_matter():
    # 50 times 0.1 has a standard deviation of 4e-17, which is no scale.
    z, e, u = np.arange(50.0), np.arange(50.0), np.full(2, 0.5)
    alone = ResidualPools(z, e, np.zeros(50, bool)).draw([3.0, 40.0], u)
    beside = ResidualPools(np.column_stack([np.full(50, 0.1), z]), e, np.zeros(50, bool)).draw([[0.1 + 1e-9, 3.0], [0.1, 40.0]], u)
    np.testing.assert_array_equal(beside, alone)


def test_zero_residuals_are_naive_imputation_and_an_exact_imputer_is_the_oracle():
    rng = np.random.default_rng(4)
    y, masked = rng.standard_normal(400), rng.random(400) < 0.3
    guess, z = y + rng.standard_normal(400), rng.random(400)
    zeros = ResidualPools(z, np.zeros(400), masked).draw(z, rng.random(400))
    np.testing.assert_array_equal(impute(guess, y, masked, zeros), impute(guess, y, masked))
    exact = ResidualPools(z, y - y, masked).draw(z, rng.random(400))
    np.testing.assert_array_equal(impute(y, np.where(masked, np.nan, y), masked, exact), y)
    scores = cqr_scores(impute(y, y, masked, exact), np.zeros(400), np.zeros(400))
    assert conformal_quantile(scores, 0.1) == conformal_quantile(cqr_scores(y, np.zeros(400), np.zeros(400)), 0.1)


@given(st.integers(0, 10_000), st.floats(0, 0.999999))
def test_every_draw_is_a_residual_of_a_clean_reference_row(seed, u):
    rng = np.random.default_rng(seed)
    z, e, masked = rng.integers(0, 4, 30).astype(float), rng.standard_normal(30), rng.random(30) < 0.7
    masked[0] = False
    drawn = ResidualPools(z, e, masked).draw(rng.integers(0, 6, 5).astype(float), np.full(5, u))
    assert set(drawn) <= set(e[~masked])


def test_residuals_restore_the_spread_that_point_predictions_lose():
    # Y = Z-free noise: imputing means makes scores too small, imputing draws keeps the threshold.
    rng = np.random.default_rng(5)
    y, z, masked = rng.standard_normal(20_000), rng.random(20_000), rng.random(20_000) < 0.5
    pools = ResidualPools(z[:5000], y[:5000], masked[:5000])
    guess = np.zeros(20_000)
    naive, ours = (conformal_quantile(np.abs(impute(guess, y, masked, r)), 0.1) for r in (0.0, pools.draw(z, rng.random(20_000))))
    assert ours == pytest.approx(1.645, abs=0.05)
    assert naive == pytest.approx(1.2816, abs=0.05)  # half the labels are 0: P(|Y| > q) = 0.2 decides


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ResidualPools(np.zeros(8), np.zeros(8), ~CLEAN), "no clean row among 8"),
        (lambda: ResidualPools(np.zeros(8), np.full(8, np.nan), CLEAN), "residuals: 8 of 8 are NaN"),
        (lambda: ResidualPools(np.full(8, np.nan), np.zeros(8), CLEAN), "z: 8 of 8 values are not finite"),
        (lambda: ResidualPools(np.zeros(8), np.zeros(7), CLEAN), "z 8, residuals 7, masked 8"),
        (lambda: ResidualPools(np.zeros(8), np.zeros(8), np.zeros(8)), "masked must be boolean"),
        (lambda: ResidualPools(np.zeros(8), np.zeros(8), CLEAN, clusters=0), "at least 1, got 0 and 20"),
        (lambda: ResidualPools(np.zeros(8), np.zeros(8), CLEAN, neighbours=0), "at least 1, got 20 and 0"),
        (lambda: ResidualPools(np.zeros(8), np.zeros(8), CLEAN).draw([0.0], np.array([1.0])), "uniforms must lie in"),
        (lambda: ResidualPools(np.zeros(8), np.zeros(8), CLEAN).draw([0.0, 1.0], np.array([0.1])), "z 2, uniforms 1"),
        (
            lambda: ResidualPools(np.zeros((8, 2)), np.zeros(8), CLEAN).draw([0.0], np.array([0.1])),
            "z has 1 columns, the reference rows have 2",
        ),
        (lambda: ResidualPools(list("abcdefgh"), np.zeros(8), CLEAN), "z must be numbers"),
        (lambda: ResidualPools(np.zeros((8, 2, 2)), np.zeros(8), CLEAN), r"z must have shape \(n,\) or \(n, d\), got \(8, 2, 2\)"),
        (lambda: impute(np.ones(3), np.ones(3), np.ones(3, bool), np.ones(2)), "residuals 2"),
        (lambda: impute([1.0], [1.0, 2.0], np.array([True])), "prediction 1, y 2, masked 1"),
        (lambda: impute([1.0], [1.0], np.array([1])), "masked must be boolean"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
