"""Random Q functions from a fixed law, many at once: the predictors on which Bellman losses are matched.

A bank holds k functions f_j(s, a) and k reward scales lambda_j. Two families (Gupta et al., arXiv 2512.00536, section 4.2):

- `rff`: linear in random Fourier features of s that all members share, one Gaussian coefficient vector per action;
- `mlp`: two-layer ReLU networks with their own hidden layers.

`additive` predictors, whose loss is a quadratic form, are in `tasks.distillation.additive`. Everything here is torch; states come
standardised.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from pydantic import Field, model_validator

from tasks.common.node import Params

if TYPE_CHECKING:
    import torch


class BankConfig(Params):
    """A law of predictors and what their Bellman loss looks at.

    Attributes:
        family: see the module.
        k: number of predictors, where it differs from the other banks'.
        features: cosines (rff) or hidden units (mlp).
        bandwidth: length scale of the random Fourier features, in standardised states.
        own_features: whether an rff bank has features of its own; without, all of a data set's share theirs, one class of functions.
        scale_low: predictors and reward scales are multiplied by factors drawn log-uniformly from [scale_low, 1].
        reward_scale: lambda ~ N(0, 1) / rms(r), or fixed to one (an ablation), or zero.
        terminals: whether the continuation flag counts; without it every row bootstraps (an ablation).
        bootstrap: whether s' counts; without it and with reward_scale zero only values at (s, a) are matched (the control).
    """

    family: Literal["rff", "mlp"] = "rff"
    k: int | None = Field(None, ge=1)
    features: int = Field(48, ge=1)
    bandwidth: float = Field(2.0, gt=0)
    own_features: bool = False
    scale_low: float = Field(1.0, gt=0, le=1)
    reward_scale: Literal["normal", "one", "zero"] = "normal"
    terminals: bool = True
    bootstrap: bool = True

    @model_validator(mode="after")
    def _matches_something(self) -> BankConfig:
        if not self.terminals and not self.bootstrap:
            raise ValueError("terminals=False has no meaning without bootstrap; leave terminals=True")
        return self


class Bank(Protocol):
    """K predictors with their reward scales."""

    reward_scale: torch.Tensor

    @property
    def dimension(self) -> int:
        """Coordinates d of a state."""
        ...

    def embed(self, obs: torch.Tensor) -> torch.Tensor:
        """What all actions share of states (n, d)."""
        ...

    def values(self, embedded: torch.Tensor, action: int) -> torch.Tensor:
        """f_j(s, action), (n, k)."""
        ...

    @property
    def n_actions(self) -> int:
        """A."""
        ...


@dataclass(frozen=True)
class RffBank:
    """F_j(s, a) = phi(s) . v_ja with phi(s) = (sqrt(2 / F) cos(W s + b), 1).

    Attributes:
        frequency: W, (d, F); phase: b, (F,).
        coefficients: (A, F + 1, k).
        reward_scale: lambda, (k,).
    """

    frequency: torch.Tensor
    phase: torch.Tensor
    coefficients: torch.Tensor
    reward_scale: torch.Tensor

    @property
    def n_actions(self) -> int:
        """A."""
        return len(self.coefficients)

    @property
    def dimension(self) -> int:
        """Coordinates d of a state."""
        return len(self.frequency)

    def embed(self, obs: torch.Tensor) -> torch.Tensor:
        """Features (n, F + 1) of states (n, d)."""
        import torch

        waves = (2.0 / self.phase.numel()) ** 0.5 * torch.cos(obs @ self.frequency + self.phase)
        return torch.nn.functional.pad(waves, (0, 1), value=1.0)

    def values(self, embedded: torch.Tensor, action: int) -> torch.Tensor:
        """f_j(s, action), (n, k)."""
        return embedded @ self.coefficients[action]

    def first(self, k: int) -> RffBank:
        """The first k predictors."""
        return replace(self, coefficients=self.coefficients[..., :k].contiguous(), reward_scale=self.reward_scale[:k])


@dataclass(frozen=True)
class MlpBank:
    """F_j(s, a) = relu(s W_j + b_j) . v_ja + c_ja.

    Attributes:
        hidden: W, (d, k, H); hidden_bias: (k, H).
        coefficients: (A, k, H); bias: (A, k).
        reward_scale: lambda, (k,).
    """

    hidden: torch.Tensor
    hidden_bias: torch.Tensor
    coefficients: torch.Tensor
    bias: torch.Tensor
    reward_scale: torch.Tensor

    @property
    def n_actions(self) -> int:
        """A."""
        return len(self.coefficients)

    @property
    def dimension(self) -> int:
        """Coordinates d of a state."""
        return len(self.hidden)

    def embed(self, obs: torch.Tensor) -> torch.Tensor:
        """Hidden activations (n, k, H) of states (n, d)."""
        d, k, h = self.hidden.shape
        return (obs @ self.hidden.reshape(d, k * h) + self.hidden_bias.reshape(k * h)).relu().reshape(-1, k, h)

    def values(self, embedded: torch.Tensor, action: int) -> torch.Tensor:
        """f_j(s, action), (n, k)."""
        import torch

        return torch.einsum("nkh,kh->nk", embedded, self.coefficients[action]) + self.bias[action]

    def first(self, k: int) -> MlpBank:
        """The first k predictors."""
        return MlpBank(
            self.hidden[:, :k].contiguous(), self.hidden_bias[:k], self.coefficients[:, :k], self.bias[:, :k], self.reward_scale[:k]
        )


AnyBank = RffBank | MlpBank


def draw_bank(
    config: BankConfig,
    k: int,
    dimension: int,
    n_actions: int,
    reward_rms: float,
    rng: np.random.Generator,
    features: np.random.Generator | None = None,
) -> AnyBank:
    """Draw a bank of random predictors.

    Args:
        config: the law.
        k: number of predictors, >= 1.
        dimension: d of the states.
        n_actions: A.
        reward_rms: root mean square of the learning reward, > 0, so that reward and value terms are of one size.
        rng: generator.
        features: generator of an rff bank's frequencies and phases, which span the class of functions; `rng` by default.

    Raises:
        ValueError: for k < 1, or a reward that is zero everywhere, which no scale can make matter.

    Example:
        >>> bank = draw_bank(BankConfig(), 7, 4, 2, 0.1, np.random.default_rng(0))
        >>> tuple(bank.coefficients.shape), tuple(bank.reward_scale.shape)
        ((2, 49, 7), (7,))
    """
    import torch

    if k < 1:
        raise ValueError(f"needs at least one predictor, got k = {k}")
    if not reward_rms > 0:
        raise ValueError(f"reward_rms must be positive, got {reward_rms}; a reward that is always zero carries no signal")
    size = config.features
    scale, reward_factor = np.exp(rng.uniform(np.log(config.scale_low), 0.0, (2, k)))
    normal = rng.standard_normal(k) / reward_rms * reward_factor
    lam = {"normal": normal, "one": np.ones(k), "zero": np.zeros(k)}[config.reward_scale]

    def tensor(values: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.float32)

    if config.family == "rff":
        features = features or rng
        frequency = features.standard_normal((dimension, size)) / config.bandwidth
        phase = features.uniform(0, 2 * np.pi, size)
        coefficients = rng.standard_normal((n_actions, size + 1, k)) * scale
        return RffBank(tensor(frequency), tensor(phase), tensor(coefficients), tensor(lam))
    hidden = rng.standard_normal((dimension, k, size)) / np.sqrt(dimension)
    hidden_bias = 0.6 * rng.standard_normal((k, size))
    coefficients = rng.standard_normal((n_actions, k, size)) / np.sqrt(size) * scale[:, None]
    bias = 0.6 * rng.standard_normal((n_actions, k)) * scale
    return MlpBank(tensor(hidden), tensor(hidden_bias), tensor(coefficients), tensor(bias), tensor(lam))


def to(bank: AnyBank, dtype: torch.dtype, device: str = "cpu") -> AnyBank:
    """The bank in another precision or place."""
    return type(bank)(**{name: value.to(device=device, dtype=dtype) for name, value in bank_tensors(bank).items()})


def bank_tensors(bank: AnyBank) -> dict[str, torch.Tensor]:
    """The bank's tensors by name, for safetensors."""
    return {f.name: getattr(bank, f.name) for f in fields(bank)}


def bank_from(tensors: dict[str, torch.Tensor]) -> AnyBank:
    """The bank of these tensors, the inverse of `bank_tensors`."""
    return RffBank(**tensors) if "frequency" in tensors else MlpBank(**tensors)
