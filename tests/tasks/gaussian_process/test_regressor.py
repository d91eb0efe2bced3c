from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tasks.gaussian_process.regressor import DeepGPClassifier, DeepGPRegressor

FAST = {"inducing": 8, "steps": 60, "warm_steps": 60, "draws": 20, "diffusion_steps": 4}


def table(n: int = 120):
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(-2, 2, n), rng.standard_normal(n) * 50 + 7])
    return x, 40 + 10 * np.sin(1.5 * x[:, 0]) + rng.standard_normal(n)


@pytest.mark.parametrize("method", ["dbvi", "ddvi", "mean_vector", "dsvi"])
def test_every_method_learns_in_the_targets_units(method):
    x, y = table()
    model = DeepGPRegressor(method=method, **FAST).fit(x, y)
    assert model.score(x, y) > 0.5
    mean, std = model.predict(x, return_std=True)
    assert np.array_equal(mean, model.predict(x))
    assert 0.5 < std.mean() < 10


def test_distribution_gives_mean_deviation_density_and_interval():
    x, y = table()
    model = DeepGPRegressor(**FAST).fit(x, y)
    means, variances = model.predict_distribution(x[:6])
    mean, std = model.predict(x[:6], return_std=True)
    np.testing.assert_allclose(mean, means.mean(0))
    np.testing.assert_allclose(std**2, variances.mean(0) + means.var(0))
    density = stats.norm.pdf(y[:6], means, np.sqrt(variances)).mean(0)
    np.testing.assert_allclose(model.score_samples(x[:6], y[:6]), np.log(density))
    lower, upper = model.predict_interval(x[:6], 0.8)
    inside = stats.norm.cdf(upper, means, np.sqrt(variances)).mean(0) - stats.norm.cdf(lower, means, np.sqrt(variances)).mean(0)
    np.testing.assert_allclose(inside, 0.8, atol=1e-6)


def test_clones_pipelines_and_seeds():
    x, y = table()
    model = DeepGPRegressor(sigma=0.2, **FAST)
    assert clone(model).get_params() == model.get_params()
    assert np.array_equal(clone(model).fit(x, y).predict(x), model.fit(x, y).predict(x))
    assert not np.array_equal(clone(model).set_params(random_state=1).fit(x, y).predict(x), model.predict(x))
    scores = cross_val_score(make_pipeline(StandardScaler(), DeepGPRegressor(method="dsvi", **FAST)), x, y, cv=2)
    assert (scores > 0).all()


def test_few_rows_use_fewer_inducing_inputs():
    x, y = table(5)
    assert DeepGPRegressor(**FAST).fit(x, y).model_.layers[0].z.shape[1] == 5


def test_classes_keep_their_names():
    x, _ = table()
    labels = np.where(x[:, 0] > 0.7, "high", np.where(x[:, 0] < -0.7, "low", "middle"))
    model = DeepGPClassifier(**FAST).fit(x, labels)
    assert model.score(x, labels) > 0.7
    p = model.predict_proba(x)
    np.testing.assert_allclose(p.sum(1), 1.0)
    np.testing.assert_allclose(model.score_samples(x, labels), np.log(p[np.arange(len(x)), np.searchsorted(model.classes_, labels)]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y: DeepGPRegressor(method="svgd").fit(x, y), "unknown method 'svgd'"),
        (lambda x, y: DeepGPRegressor().fit(x, np.ones(len(y))), "y must vary"),
        (lambda x, y: DeepGPRegressor().fit(np.where(x > 1, np.nan, x), y), "NaN"),
        (lambda x, y: DeepGPRegressor(sigma=0.0).fit(x, y), "greater than 0"),
        (lambda x, y: DeepGPRegressor(depth=0).fit(x, y), "greater than or equal to 1"),
        (lambda x, y: DeepGPRegressor(**FAST).fit(x, y).predict(x[:, :1]), "1 features"),
        (lambda x, y: DeepGPRegressor(**FAST).fit(x, y).predict_interval(x, 1.0), "level must lie in"),
        (lambda x, y: DeepGPClassifier().fit(x, np.zeros(len(y))), "at least two classes"),
        (lambda x, y: DeepGPClassifier(**FAST).fit(x, y > 40).score_samples(x, y), "outside the classes"),
    ],
)
def test_impossible_tables_and_settings_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(*table(40))
