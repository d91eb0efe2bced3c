from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tasks.gaussian_process import prediction
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


@pytest.mark.parametrize("estimator", [DeepGPRegressor, DeepGPClassifier])
def test_a_rows_prediction_does_not_depend_on_the_other_rows(estimator, monkeypatch):
    x, y = table()
    model = estimator(**FAST).fit(x, np.round(y > 40) if estimator is DeepGPClassifier else y)
    ask = getattr(model, "predict_proba", model.predict)
    whole = ask(x)
    np.testing.assert_allclose(ask(x[:3]), whole[:3], rtol=1e-4)
    np.testing.assert_allclose(ask(x[::-1])[::-1], whole, rtol=1e-4)
    monkeypatch.setattr(prediction, "ROWS_AT_ONCE", 7)
    np.testing.assert_allclose(ask(x), whole, rtol=1e-4)


def test_a_feature_that_is_constant_in_training_says_nothing_later():
    x, y = table(40)
    tenth = np.full((40, 1), 0.1)  # whose standard deviation is not exactly zero in floating point
    model = DeepGPRegressor(**FAST).fit(np.hstack([x, tenth]), y)
    assert np.array_equal(model.predict(np.hstack([x, tenth + 5])), model.predict(np.hstack([x, tenth])))


def test_random_states_are_scikit_learns():
    x, y = table(40)
    quick = {**FAST, "steps": 5, "warm_steps": 5}
    first, second = (DeepGPRegressor(**quick, random_state=np.random.RandomState(3)).fit(x, y).predict(x) for _ in range(2))
    assert np.array_equal(first, second)
    unseeded = DeepGPRegressor(**quick, random_state=None)
    assert not np.array_equal(unseeded.fit(x, y).predict(x), unseeded.fit(x, y).predict(x))


def test_predicting_before_fitting_says_so():
    for call in (DeepGPRegressor().predict, DeepGPClassifier().predict, DeepGPClassifier().predict_proba):
        with pytest.raises(NotFittedError):
            call(np.zeros((2, 2)))


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
        (lambda x, y: DeepGPClassifier(**FAST).fit(x, y > 40).score_samples(x[:5], y[:4] > 40), "inconsistent numbers of samples"),
        (lambda x, y: DeepGPClassifier(**FAST).fit(x, y), "[Uu]nknown label type"),
        (lambda x, y: DeepGPRegressor(**FAST).fit(x, y).score_samples(x[:5], y[:1]), "inconsistent numbers of samples"),
        (lambda x, y: DeepGPRegressor(**FAST).fit(x, y).score_samples(x[:2], [0.0, np.nan]), "y must be finite numbers"),
        (lambda x, y: DeepGPRegressor().fit(x, ["high"] * len(y)), "could not convert string"),
        (lambda x, y: DeepGPRegressor(random_state=-1).fit(x, y), "random_state must lie in"),
    ],
)
def test_impossible_tables_and_settings_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(*table(40))
