"""Longest stable prefix: commit one left-aligned block per call (Li et al., 2026, arXiv 2603.05454).

The frontier k separates committed from active positions. A call predicts all n active ones; margins (top-1 minus top-2 logit) say how sure
each is, and whether its token is the one of the call before says whether it is stable. The longest run from the frontier that
passes an adaptive threshold, shortened to the last delimiter in a window, is committed at once. Keys and values of a block are
computed once more with its tokens as inputs, in the next call, and then frozen: one boundary, contiguous appends, a shrinking suffix.
Nothing here knows a particular model or task.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from tasks.common.node import Params
from tasks.masked_diffusion.decoding import Ask, Decoded, Decoding, Denoiser, Prediction, Specials, Steps, drive


class LspParams(Params):
    """The scheduler and its switches.

    Attributes:
        kind: tells schedulers apart in `params.yaml`.
        alpha: share of the suffix that the threshold lets through at least, in (0, 1].
        beta: largest share that is committed at once, in [alpha, 1].
        tau_min: margin below which nothing passes, whatever alpha says; None: the rule taken literally. Logits: 2.2 is a
            first token nine times as probable as the second.
        window: W, how many tokens a block is shortened at most to end at a delimiter; 0 switches that off.
        minimum: L_min, tokens that are committed whatever the margins are.
        stability: calls over which a token must have been the same; 0 switches that off.
        rule: `adaptive`, or `fixed`: everything up to the first margin below `tau_min`.
        topology: `prefix`, or `scattered`: as many tokens, but the surest ones anywhere (without a cache).
        cache: `prefix`, or `none`: everything is computed anew in every call.
        keep_draft: feed the predictions of stable suffix tokens instead of masks.
    """

    kind: Literal["lsp"] = "lsp"
    alpha: float = Field(0.25, gt=0, le=1)
    beta: float = Field(0.5, gt=0, le=1)
    tau_min: float | None = 2.0
    window: int = Field(8, ge=0)
    minimum: int = Field(1, ge=1)
    stability: int = Field(1, ge=0)
    rule: Literal["adaptive", "fixed"] = "adaptive"
    topology: Literal["prefix", "scattered"] = "prefix"
    cache: Literal["prefix", "none"] = "prefix"
    keep_draft: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> LspParams:
        if self.beta < self.alpha:
            raise ValueError(f"beta must lie in [alpha, 1] = [{self.alpha}, 1], got {self.beta}")
        if self.tau_min is not None and self.tau_min < 0:
            raise ValueError(f"tau_min must be at least 0, or null for the literal rule, got {self.tau_min}")
        if self.rule == "fixed" and self.tau_min is None:
            raise ValueError("rule 'fixed' needs a tau_min, got null")
        if self.topology == "scattered" and (self.cache != "none" or self.keep_draft):
            raise ValueError("scattered commits leave no single boundary; they need cache 'none' and no keep_draft")
        return self


def adaptive_length(margins: np.ndarray, alpha: float, beta: float, tau_min: float | None = None) -> tuple[int, float]:
    """Length of the prefix that passes the adaptive threshold, in O(n) by prefix minima.

    tau is the largest threshold that lets ceil(alpha n) tokens through, raised to `tau_min`; margins equal to it extend the prefix, and
    floor(beta n) caps it. A margin of minus infinity (an unstable token) passes no threshold.

    Args:
        margins: of the active positions from the frontier on, (n,).
        alpha: in (0, 1].
        beta: in [alpha, 1].
        tau_min: floor of the threshold, or None.

    Returns:
        (L', tau); L' may be 0.

    Raises:
        ValueError: for alpha outside (0, 1] or beta outside [alpha, 1].

    >>> adaptive_length(np.array([9.0, 5.0, 7.0, 5.0, 1.0, 8.0, 0.5, 3.0]), alpha=0.25, beta=0.75)
    (4, 5.0)
    >>> adaptive_length(np.array([9.0, 5.0, 7.0, 5.0, 1.0, 8.0, 0.5, 3.0]), alpha=0.25, beta=0.75, tau_min=6.0)
    (1, 6.0)
    """
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha must lie in (0, 1], got {alpha}")
    if not alpha <= beta <= 1:
        raise ValueError(f"beta must lie in [alpha, 1] = [{alpha}, 1], got {beta}")
    n = len(margins)
    if n == 0:
        return 0, math.inf
    lowest = np.minimum.accumulate(margins)  # m_j, not increasing
    at_least = max(1, math.ceil(round(alpha * n, 9)))
    at_most = max(at_least, math.floor(round(beta * n, 9)))
    tau = float(lowest[at_least - 1])
    if tau_min is not None:
        tau = max(tau, tau_min)
    return min(passing(lowest, tau), at_most), tau


def passing(lowest: np.ndarray, tau: float) -> int:
    """How many leading prefix minima (n,) reach tau; minus infinity never does."""
    return int(((lowest >= tau) & (lowest > -math.inf)).sum())


def snap(tokens: Sequence[int] | np.ndarray, length: int, delimiters: Collection[int], window: int, minimum: int = 1) -> int:
    """Shorten a block so that it ends at a delimiter.

    Args:
        tokens: predictions of the active positions, (n,).
        length: L', how many of them passed.
        delimiters: token ids after which a block may end.
        window: W, how far back to look.
        minimum: L_min.

    Returns:
        the last j <= L' with tokens[j - 1] a delimiter and L' - j <= W, or L' where there is none or L' = n; at least `minimum`, at most n.

    Raises:
        ValueError: for a window below 0 or a minimum below 1.

    >>> snap([3, 7, 4, 5, 6], 4, {7}, window=2), snap([3, 7, 4, 5, 6], 4, {7}, window=1), snap([3, 7, 4, 5, 6], 5, {7}, window=8)
    (2, 4, 5)
    """
    if window < 0:
        raise ValueError(f"window must be at least 0, got {window}")
    if minimum < 1:
        raise ValueError(f"minimum must be at least 1, got {minimum}")
    n = len(tokens)
    snapped = length
    if length < n:
        for j in range(length, max(length - window, 1) - 1, -1):
            if int(tokens[j - 1]) in delimiters:
                snapped = j
                break
    return min(max(snapped, minimum), n)


def prefix_schedule(decoding: Decoding, params: LspParams) -> Steps:
    """Commit blocks until the answer is done; see `lsp_decode` for a call that does it all."""
    history = _Stability(decoding.length, params.stability)
    while not decoding.done:
        frontier = decoding.prompt_length + int(decoding.known.argmin())
        start = decoding.cache.frozen if decoding.cache is not None else 0
        found = yield Ask(start, wanted=frontier)
        if decoding.cache is not None:
            decoding.cache.freeze(frontier)
        if params.topology == "scattered":
            _commit_scattered(decoding, found, history, params)
            continue
        if params.keep_draft:
            found = history.with_drafts(found)
        _commit_prefix(decoding, found, history, params)


def lsp_decode(
    denoiser: Denoiser,
    prompt: Sequence[int],
    length: int,
    specials: Specials,
    params: LspParams | None = None,
    *,
    keep_margins: bool = False,
    device: str = "cpu",
) -> Decoded:
    """Decode one answer with the longest-stable-prefix scheduler.

    Args:
        denoiser: any masked-diffusion model with the call signature of `tasks.masked_diffusion.decoding`.
        prompt: token ids (P,).
        length: answer tokens N; 0 gives an empty answer without a call.
        specials: mask, end and delimiter tokens.
        params: the scheduler's switches.
        keep_margins: put the margins of every call into the trace.
        device: where the denoiser wants its tokens.

    Returns:
        tokens up to the first end token, counters, trace.

    Raises:
        ValueError: for an empty prompt or a negative length, or a cache that the denoiser does not offer.

    >>> import torch
    >>> def denoiser(tokens, positions, cache):  # always sure of token 1
    ...     return torch.nn.functional.one_hot(torch.ones_like(tokens), 3) * 9.0
    >>> found = lsp_decode(denoiser, [2, 2], 8, Specials(mask_id=0), LspParams(cache="none", stability=0))
    >>> found.tokens, found.counters.nfe
    ([1, 1, 1, 1, 1, 1, 1, 1], 4)
    """
    params = params or LspParams()
    decoding = Decoding(denoiser, prompt, length, specials, cached=params.cache == "prefix", keep_margins=keep_margins, device=device)
    drive(decoding, prefix_schedule(decoding, params))
    return decoding.result()


class _Stability:
    """Which predictions are those of the calls before, by absolute position, so that nothing shifts after a commit."""

    def __init__(self, length: int, window: int) -> None:
        self._window = window
        self._tokens = np.full(length, -1, dtype=np.int64)
        self._margins = np.zeros(length)
        self._same = np.zeros(length, dtype=np.int64)  # calls since the prediction last changed
        self._calls = 0
        self.drafts: np.ndarray = np.zeros(length, dtype=bool)

    def stable(self, found: Prediction) -> np.ndarray:
        """Take in predictions; which of them have not changed over the window (n,). What lies before the first call counts as unchanged."""
        place = slice(found.first, found.first + len(found.tokens))
        same = found.tokens == self._tokens[place]
        self._same[place] = np.where(same, self._same[place] + 1, 0)
        self._tokens[place] = found.tokens
        self._margins[place] = found.margins
        needed = min(self._window, self._calls)
        self._calls += 1
        stable: np.ndarray = self._same[place] >= needed
        return stable

    def with_drafts(self, found: Prediction) -> Prediction:
        """Predictions in which positions that were fed a draft keep what they were when they were last masked."""
        place = slice(found.first, found.first + len(found.tokens))
        drafts = self.drafts[place]
        tokens = np.where(drafts, self._tokens[place], found.tokens)
        margins = np.where(drafts, self._margins[place], found.margins).astype(found.margins.dtype)
        return Prediction(found.first, tokens, margins, found.logits)


def _run_before_end(tokens: np.ndarray, eos_id: int | None) -> int:
    """Active positions that count: up to and including the first predicted end."""
    ends = np.flatnonzero(tokens == eos_id) if eos_id is not None else np.zeros(0)
    return int(ends[0]) + 1 if ends.size else len(tokens)


def _length(margins: np.ndarray, params: LspParams) -> tuple[int, float]:
    if params.rule == "fixed":
        assert params.tau_min is not None
        return passing(np.minimum.accumulate(margins), params.tau_min), params.tau_min
    return adaptive_length(margins, params.alpha, params.beta, params.tau_min)


def _commit_prefix(decoding: Decoding, found: Prediction, history: _Stability, params: LspParams) -> None:
    stable = history.stable(found)
    n = _run_before_end(found.tokens, decoding.specials.eos_id)
    margins = np.where(stable, found.margins, -math.inf)[:n]
    passed, tau = _length(margins, params)
    length = snap(found.tokens[:n], passed, decoding.specials.delimiters, params.window, params.minimum)
    decoding.trace.thresholds.append((tau, passed, length))
    decoding.commit(np.arange(found.first, found.first + length), found.tokens[:length])
    if params.keep_draft:
        _feed_drafts(decoding, found, stable, length, history)


def _feed_drafts(decoding: Decoding, found: Prediction, stable: np.ndarray, length: int, history: _Stability) -> None:
    places = np.arange(found.first + length, found.first + len(found.tokens))
    kept = stable[length:] if decoding.trace.thresholds[1:] else np.zeros(len(places), dtype=bool)  # the first call has none before it
    history.drafts[:] = False
    history.drafts[places] = kept
    fed = np.where(kept, found.tokens[length:], decoding.specials.mask_id)
    decoding.inputs[0, decoding.prompt_length + places] = decoding.inputs.new_tensor(fed)


def _commit_scattered(decoding: Decoding, found: Prediction, history: _Stability, params: LspParams) -> None:
    """As many tokens as the prefix rule lets through among the masked positions, but the surest ones wherever they are."""
    stable = history.stable(found)
    masked = np.flatnonzero(~decoding.known[found.first :])
    margins = np.where(stable, found.margins, -math.inf)[masked]
    passed, tau = _length(margins, params)
    count = min(max(passed, params.minimum), len(masked))
    chosen = np.sort(masked[np.argsort(-margins, kind="stable")[:count]])
    decoding.trace.thresholds.append((tau, passed, count))
    decoding.commit(found.first + chosen, found.tokens[chosen])
