"""Deep Gaussian processes for a person's own table, as scikit-learn estimators: DBVI by default, DDVI and DSVI beside it.

`DeepGPRegressor` and `DeepGPClassifier` standardise the data, warm-start kernels by DSVI, train one model, and predict with posterior
draws. They follow scikit-learn's conventions (`clone`, `get_params`, pipelines, cross-validation); features must be numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax, logsumexp, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from tasks.gaussian_process.deep_gp import DeepGP
from tasks.gaussian_process.diffusion_bridge import BridgeParams
from tasks.gaussian_process.experiment import Architecture, load_shared
from tasks.gaussian_process.prediction import predict
from tasks.gaussian_process.predictive_metrics import mixture_mean, mixture_quantiles, mixture_variance
from tasks.gaussian_process.problem import Problem
from tasks.gaussian_process.streams import SeedStreams
from tasks.gaussian_process.train_bridge import CENTERS, bridge_model
from tasks.gaussian_process.training import FitParams, train
from tasks.gaussian_process.warmstart import gaussian_model, warm_state

Floats = NDArray[np.float64]
METHODS = ("dbvi", "ddvi", "mean_vector", "dsvi")
PREDICT = 5
"""Purpose of the random stream of predictions."""


class _DeepGPEstimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators share."""

    def __init__(
        self,
        method: str = "dbvi",
        depth: int = 2,
        inducing: int = 32,
        sigma: float = 0.3,
        diffusion_steps: int = 10,
        steps: int = 500,
        warm_steps: int = 100,
        batch: int = 256,
        samples: int = 2,
        rate: float = 0.01,
        draws: int = 100,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "cpu",
    ) -> None:
        self.method = method
        self.depth = depth
        self.inducing = inducing
        self.sigma = sigma
        self.diffusion_steps = diffusion_steps
        self.steps = steps
        self.warm_steps = warm_steps
        self.batch = batch
        self.samples = samples
        self.rate = rate
        self.draws = draws
        self.random_state = random_state
        self.device = device

    def _fit(self, x: Floats, y: NDArray[Any], classes: int) -> None:
        """Train on standardised features and targets (numbers, or class numbers)."""
        if self.method not in METHODS:
            raise ValueError(f"unknown method {self.method!r}; known: {', '.join(METHODS)}")
        self.seed_ = _seed(self.random_state)
        self.x_mean_, spread = x.mean(axis=0), x.std(axis=0)
        self.x_scale_ = np.where(np.ptp(x, axis=0) > 0, spread, np.inf)  # a constant feature says nothing, whatever comes later
        inputs = self._inputs(x)
        targets = torch.as_tensor(y, device=self.device)[None]
        targets = targets.long() if classes else targets.float()
        problem = Problem(inputs, targets, inputs[:, :1], targets[:, :1], np.ones(1), classes)
        # As many inducing inputs as rows at most: small tables are a person's right.
        architecture = Architecture(depth=self.depth, inducing=min(self.inducing, len(x)))
        fit = FitParams(batch=self.batch, samples=self.samples, rate=self.rate, curve=0, draws=0)
        seeds = [self.seed_]
        self.model_: DeepGP
        if self.method == "dsvi":
            self.model_ = gaussian_model(problem, architecture, seeds)
        else:
            bridge = BridgeParams(center=CENTERS[self.method], sigma=self.sigma, steps=self.diffusion_steps)
            self.model_ = bridge_model(problem, architecture, seeds, bridge)
        if self.warm_steps:
            load_shared(self.model_, warm_state(problem, architecture, fit, seeds, self.warm_steps)[0])
        self.elbo_ = train(self.model_, problem, fit, self.steps, seeds).elbo[:, 0]

    def _inputs(self, x: Floats) -> torch.Tensor:
        return torch.as_tensor((x - self.x_mean_) / self.x_scale_, dtype=torch.float32, device=self.device)[None]

    def _components(self, x: ArrayLike) -> tuple[Floats, Floats]:
        """Means and variances (S, n, d) for features (n, D), the same for every call and whatever other rows are asked for."""
        check_is_fitted(self, "model_")
        checked = validate_data(self, x, reset=False, dtype=float)
        streams = SeedStreams([self.seed_], PREDICT, self.device)
        mean, variance = predict(self.model_, self._inputs(checked), self.draws, streams, common_noise=True)
        return mean[0], variance[0]


def _seed(random_state: int | np.random.RandomState | None) -> int:
    """A number as it is; else one that scikit-learn's conventions give, new for every fit."""
    if random_state is None or isinstance(random_state, np.random.RandomState):
        return int(check_random_state(random_state).randint(2**31 - 1))
    seed = int(random_state)
    if not 0 <= seed < 2**32:
        raise ValueError(f"random_state must lie in 0..{2**32 - 1}, got {seed}")
    return seed


class DeepGPRegressor(RegressorMixin, _DeepGPEstimator):  # type: ignore[misc]
    """Regression by a deep Gaussian process with a diffusion posterior.

    Args:
        method: `dbvi`, `ddvi`, `mean_vector` or `dsvi`.
        depth: layers.
        inducing: inducing inputs per layer; at most the number of rows is used.
        sigma: of the diffusion's end, in whitened coordinates.
        diffusion_steps: K.
        steps: of training.
        warm_steps: of DSVI before it; 0 for none.
        batch: rows per step.
        samples: posterior samples per step.
        rate: of Adam.
        draws: posterior draws per prediction.
        random_state: seed; None for another result at every fit.
        device: torch device.

    Attributes:
        elbo_: bound per datum in nats at every training step, of standardised targets, (steps,).
        model_: the trained `DeepGP`.

    Raises:
        ValueError: by `fit`, for unknown methods, settings out of range, tables that are not numbers or hold NaN; by the other
            methods for another number of features.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(-2, 2, (60, 1))
    >>> model = DeepGPRegressor(inducing=8, steps=30, warm_steps=20, draws=10).fit(x, np.sign(x[:, 0]))
    >>> mean, std = model.predict(x[:5], return_std=True)
    >>> mean.shape, bool((std > 0).all())
    ((5,), True)
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> DeepGPRegressor:
        """Train on features (n, D) and targets (n,)."""
        x, targets = validate_data(self, X, y, dtype=float, y_numeric=True, ensure_min_samples=2)
        targets = np.asarray(targets, dtype=float)
        self.y_mean_, self.y_sd_ = float(np.mean(targets)), float(np.std(targets))
        if not (np.ptp(targets) > 0 and self.y_sd_ > 0):
            raise ValueError(f"y must vary, got {len(targets)} targets equal to {self.y_mean_}")
        self._fit(x, (targets - self.y_mean_) / self.y_sd_, classes=0)
        return self

    def predict(self, X: ArrayLike, return_std: bool = False) -> Floats | tuple[Floats, Floats]:
        """Predictive means (n,), and standard deviations with noise, in the targets' units."""
        means, variances = self.predict_distribution(X)
        mean = mixture_mean(means)
        return (mean, np.sqrt(mixture_variance(means, variances))) if return_std else mean

    def predict_distribution(self, X: ArrayLike) -> tuple[Floats, Floats]:
        """Means and variances (S, n) of the equally weighted Gaussian mixture that is predicted, in the targets' units."""
        mean, variance = self._components(X)
        return mean[..., 0] * self.y_sd_ + self.y_mean_, variance[..., 0] * self.y_sd_**2

    def predict_interval(self, X: ArrayLike, level: float = 0.95) -> tuple[Floats, Floats]:
        """Lower and upper ends (n,) of central intervals.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        if not 0 < level < 1:
            raise ValueError(f"level must lie in (0, 1), got {level}")
        lower, upper = mixture_quantiles(*self.predict_distribution(X), [(1 - level) / 2, (1 + level) / 2])
        return lower, upper

    def score_samples(self, X: ArrayLike, y: ArrayLike) -> Floats:
        """Log predictive density of each target (n,), in nats.

        Raises:
            ValueError: for another number of targets than rows, or targets that are not finite.
        """
        targets = np.asarray(y, dtype=float)
        check_consistent_length(X, targets)
        if targets.ndim != 1 or not np.isfinite(targets).all():
            raise ValueError(
                f"y must be finite numbers (n,), got shape {targets.shape} with {int((~np.isfinite(targets)).sum())} that are not"
            )
        means, variances = self.predict_distribution(X)
        squared = (targets - means) ** 2
        return np.asarray(logsumexp(-0.5 * (np.log(2 * np.pi * variances) + squared / variances), axis=0) - np.log(len(means)))


class DeepGPClassifier(ClassifierMixin, _DeepGPEstimator):  # type: ignore[misc]
    """Classification by a deep Gaussian process with a softmax likelihood; arguments as `DeepGPRegressor`.

    Attributes:
        classes_: labels in the order of `predict_proba`'s columns.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(-2, 2, (60, 1))
    >>> model = DeepGPClassifier(inducing=8, steps=30, warm_steps=20, draws=10).fit(x, np.where(x[:, 0] > 0, "right", "left"))
    >>> model.predict([[-1.9], [1.9]]).tolist()
    ['left', 'right']
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> DeepGPClassifier:
        """Train on features (n, D) and labels (n,) of at least two classes."""
        x, labels = validate_data(self, X, y, dtype=float, ensure_min_samples=2)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(np.asarray(labels), return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must hold at least two classes, got only {self.classes_[0]!r}")
        self._fit(x, numbers, classes=len(self.classes_))
        return self

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Class probabilities (n, classes), averaged over posterior draws."""
        return np.asarray(softmax(self._logits(X), axis=-1).mean(axis=0))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Most probable labels (n,)."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def score_samples(self, X: ArrayLike, y: ArrayLike) -> Floats:
        """Log predictive probability of each label (n,), in nats.

        Raises:
            ValueError: for labels that were not seen in training, or another number of labels than rows.
        """
        check_is_fitted(self, "model_")
        labels = np.asarray(y)
        check_consistent_length(X, labels)
        if not np.isin(labels, self.classes_).all():
            raise ValueError(f"y holds labels outside the classes {self.classes_.tolist()}")
        found = log_softmax(self._logits(X), axis=-1)[:, np.arange(len(labels)), np.searchsorted(self.classes_, labels)]
        return np.asarray(logsumexp(found, axis=0) - np.log(len(found)))

    def _logits(self, x: ArrayLike) -> Floats:
        mean, variance = self._components(x)
        noise = np.random.default_rng(self.seed_).standard_normal((len(mean), 1, mean.shape[2]))
        return mean + np.sqrt(variance) * noise
