"""vAttention: heavy keys exactly, the rest by a uniform sample that is as large as a bound on the relative error asks for.

`VAttentionConfig` says what is asked for, `select` chooses keys and weights from logits, `attend` does a whole attention call. A
`Vattention` is the same as a method (`tasks.attention.interface`). Nothing here knows a model; `tasks.attention.registration` does.
Source: Desai et al. 2025 (arXiv 2510.05688), sections 3 and 4.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field, field_validator

from tasks.attention.budgets import combined_budget, finite_population, normal_quantile, sdpa_shares, sum_budget, whole_budget
from tasks.attention.selection import deterministic_set, draw_counts, random_order, sample_weights, size_of
from tasks.attention.weighted import causal_valid, exponentials, mix_values, scaled_logits, weighted_attention
from tasks.common.node import Params

if TYPE_CHECKING:
    from torch import Tensor

Mode = Literal["denominator", "numerator", "sdpa"]
Count = Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, le=1)]
FEW = 30
"""Base samples below this estimate a heavy-tailed spread poorly."""


class VAttentionConfig(Params):
    """What vAttention is asked for.

    A size is a whole number of keys or, as a float, a share: of the valid keys for `sink`, `window` and `heavy`, of the residual for
    `base`.

    Attributes:
        sink: keys at the beginning that are always read.
        window: keys at the end that are always read.
        heavy: keys that the predictor ranks highest, read exactly.
        base: first sample of the residual, from which its spread is estimated; 0 disables sampling and leaves top-k attention.
        base_min: least size of this sample.
        epsilon: relative error that is allowed.
        delta: probability with which it may be exceeded.
        mode: what the bound is on: the softmax `denominator` (the paper's experiments), the `numerator`, or the output, `sdpa`.
        predictor: what ranks the keys.
        z: two-sided normal quantile, as the lemma has it, or one-sided.
        fpc: use the smaller budget that sampling without replacement allows.
        nested: the final sample contains the base sample, so that no key is read twice; else it is drawn afresh.
        replacement: draw with replacement (an ablation).
        adaptive: let the budget follow the rule; without it the base sample is all (an ablation: hybrid of fixed size).
        oracle_stats: use spread and sums of the whole residual instead of estimates (for tests of the bound).
        min_residual: below this many residual keys a row reads all; `base_min` when it is not given.
        seed: of the sampling.

    Raises:
        ValueError: (by pydantic) for impossible values, naming the field and the allowed ones.
    """

    sink: Count = 0.001
    window: Count = 0.001
    heavy: Count = 0.05
    base: Count = 0.05
    base_min: int = Field(16, ge=2)
    epsilon: float = Field(0.25, gt=0, lt=1)
    delta: float = Field(0.25, gt=0, lt=1)
    mode: Mode = "denominator"
    predictor: Literal["oracle", "hashattention", "simhash", "pq"] = "oracle"
    z: Literal["two_sided", "one_sided"] = "two_sided"
    fpc: bool = False
    nested: bool = True
    replacement: bool = False
    adaptive: bool = True
    oracle_stats: bool = False
    min_residual: int | None = Field(None, ge=0)
    seed: int = Field(0, ge=0)

    @field_validator("sink", "window", "heavy", "base", mode="before")
    @classmethod
    def _size(cls, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("a size is a whole number of keys or a share, a float between 0 and 1")
        if value < 0 or (isinstance(value, float) and not value <= 1):
            raise ValueError(f"a size is a whole number of keys >= 0 or a share between 0 and 1, got {value!r}")
        return value


@dataclass(frozen=True)
class Selection:
    """What was chosen for each row; all tensors (..., R) but the first two.

    Attributes:
        weights: (..., R, n), 0 where a key is not read.
        fixed: bool, (..., R, n), the keys that were read for certain.
        n_s: size of the residual.
        b0: size of the base sample.
        b: size of the final sample; equal to n_s where the row was read exactly.
        wanted: what the rule asked for, before it was bounded by b0 and n_s.
    """

    weights: Tensor
    fixed: Tensor
    n_s: Tensor
    b0: Tensor
    b: Tensor
    wanted: Tensor

    @property
    def read(self) -> Tensor:
        """Bool, (..., R, n)."""
        return self.weights > 0


def select(
    logits: Tensor,
    valid: Tensor,
    config: VAttentionConfig,
    generator: torch.Generator,
    scores: Tensor | None = None,
    values: Tensor | None = None,
) -> Selection:
    """Keys and weights for every row.

    Args:
        logits: scaled products in float32, (..., R, n).
        valid: bool, broadcastable to `logits`, at least one key per row.
        config: what is asked for.
        generator: randomness of the sample.
        scores: a predictor's scores (..., R, n); the logits by default, which makes an oracle.
        values: (..., n, d), or with fewer heads; needed by the modes `numerator` and `sdpa`.

    Returns:
        The selection.

    Raises:
        ValueError: if the mode looks at values and none are given.

    Example:
        >>> logits = torch.randn(1, 1, 200, generator=torch.Generator().manual_seed(0))
        >>> chosen = select(logits, torch.ones(1, 200, dtype=torch.bool), VAttentionConfig(heavy=10), torch.Generator().manual_seed(1))
        >>> round(chosen.weights.sum().item())  # every key is stood for
        200
    """
    if config.mode != "denominator" and values is None:
        raise ValueError(f"mode {config.mode!r} bounds the error of the values' sum; give values=")
    fixed = deterministic_set(valid, logits if scores is None else scores, config.sink, config.window, config.heavy)
    residual = valid & ~fixed
    n_s = residual.sum(-1)
    nothing = torch.zeros_like(n_s)
    if config.base == 0:
        return Selection(fixed.float(), fixed, n_s, nothing, nothing, nothing.float())

    b0 = torch.maximum(size_of(config.base, n_s), torch.full_like(n_s, config.base_min)).minimum(n_s)
    exact = n_s < (config.base_min if config.min_residual is None else config.min_residual)
    e = exponentials(logits, valid)
    places = random_order(residual, generator)
    base = residual if config.oracle_stats else places <= b0[..., None]
    wanted = _wanted(config, e, fixed, base, n_s, values) if config.adaptive else nothing.float()
    b = torch.where(exact, n_s, whole_budget(wanted, b0, n_s))
    if config.replacement:
        counts = torch.where((b == n_s)[..., None], residual.long(), draw_counts(residual, b, generator))
    else:
        order = places if config.nested else random_order(residual, generator)
        counts = order <= b[..., None]
    return Selection(sample_weights(fixed, counts, n_s, b), fixed, n_s, b0, b, wanted)


def _wanted(config: VAttentionConfig, e: Tensor, fixed: Tensor, base: Tensor, n_s: Tensor, values: Tensor | None) -> Tensor:
    """Draws that the mode's bound asks for, from the base sample (or from the whole residual)."""
    epsilon, delta = sdpa_shares(config.epsilon, config.delta) if config.mode == "sdpa" else (config.epsilon, config.delta)
    z = normal_quantile(delta, config.z)
    size = base.sum(-1).float()
    spread = torch.clamp(size - (0 if config.oracle_stats else 1), min=1)  # ddof 1 for estimates
    sampled = e.masked_fill(~base, 0.0)
    mean = sampled.sum(-1) / size.clamp(min=1)
    budgets = []
    if config.mode in ("denominator", "sdpa"):
        # Two passes: the one-pass variance cancels where all scores are nearly equal.
        variance = (e - mean[..., None]).masked_fill_(~base, 0.0).square_().sum(-1) / spread
        total = e.masked_fill(~fixed, 0.0).sum(-1) + n_s * mean
        budgets.append(sum_budget(n_s, variance.sqrt(), total, epsilon, z))
    if config.mode in ("numerator", "sdpa"):
        assert values is not None
        inside = mix_values(sampled, values) / size.clamp(min=1)[..., None]  # (..., R, d): mean of e V
        squares = mix_values(sampled.square(), values.float().square().sum(-1, keepdim=True))[..., 0]  # sum of |e V|^2
        trace = ((squares - size * inside.square().sum(-1)) / spread).clamp(min=0)
        total = torch.linalg.vector_norm(mix_values(e.masked_fill(~fixed, 0.0), values) + n_s[..., None] * inside, dim=-1)
        budgets.append(sum_budget(n_s, trace.sqrt(), total, epsilon, z))
    draws = budgets[0] if len(budgets) == 1 else combined_budget(*budgets)
    return finite_population(draws, n_s) if config.fpc else draws


class Vattention:
    """vAttention as a method: `Vattention(config)(logits, valid, scores, generator)` gives weights.

    Args:
        config: what is asked for.
    """

    def __init__(self, config: VAttentionConfig) -> None:
        self.config = config

    def __call__(
        self, logits: Tensor, valid: Tensor, scores: Tensor, generator: torch.Generator, *, values: Tensor | None = None
    ) -> Tensor:
        """Weights of the keys, as `tasks.attention.interface.Method`."""
        return select(logits, valid, self.config, generator, scores, values).weights


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    config: VAttentionConfig,
    generator: torch.Generator,
    *,
    scores: Tensor | None = None,
    valid: Tensor | None = None,
    scaling: float | None = None,
) -> tuple[Tensor, Selection]:
    """One attention call.

    Args:
        query: (B, H, R, d).
        key: (B, G, n, d), H a multiple of G; the rows are the last R of the n positions.
        value: (B, G, n, d_v).
        config: what is asked for.
        generator: randomness of the samples.
        scores: a predictor's scores (B, H, R, n); the exact products by default.
        valid: bool, broadcastable to (B, H, R, n); causal by default.
        scaling: factor of the logits, 1 / sqrt(d) by default.

    Returns:
        Output (B, H, R, d_v) in the query's dtype, and the selection.

    Raises:
        ValueError: if shapes do not fit.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> q, k, v = torch.randn(1, 4, 1, 8, generator=g), torch.randn(1, 2, 300, 8, generator=g), torch.randn(1, 2, 300, 8, generator=g)
        >>> out, chosen = attend(q, k, v, VAttentionConfig(sink=4, window=4, heavy=16), g)
        >>> out.shape, chosen.b.shape
        (torch.Size([1, 4, 1, 8]), torch.Size([1, 4, 1]))
    """
    if key.shape[:3] != value.shape[:3] or query.shape[-1] != key.shape[-1] or query.shape[0] != key.shape[0]:
        raise ValueError(f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} do not fit")
    logits = scaled_logits(query, key, scaling)
    if valid is None:
        valid = causal_valid(query.shape[2], key.shape[2], query.device)
    chosen = select(logits, valid, config, generator, scores, value)
    return weighted_attention(logits, chosen.weights, value).to(query.dtype), chosen


def warn_about(config: VAttentionConfig, n: int) -> None:
    """Warn when the base sample at `n` keys is so small that a heavy-tailed residual breaks the bound."""
    if config.base == 0 or not config.adaptive:
        return
    residual = torch.tensor([max(n - sum(int(size_of(s, torch.tensor([n]))) for s in (config.sink, config.window, config.heavy)), 0)])
    b0 = max(int(size_of(config.base, residual)), config.base_min)
    if b0 < FEW:
        warnings.warn(
            f"vAttention estimates the residual's spread from {b0} keys of {n}; below {FEW} a heavy tail breaks the bound: raise base "
            f"(now {config.base}) or base_min (now {config.base_min})",
            stacklevel=2,
        )
