"""Schedulers of masked-diffusion decoding behind one interface, `decode`.

Quota (LLaDA, Nie et al., 2025), with the orders of Dream (Ye et al., 2025); threshold with and without caches (Fast-dLLM, Wu et al., 2025,
arXiv 2505.22618); Prophet's early commit (Li et al., 2025, arXiv 2508.19982); left to right; and the longest stable prefix. The published
definitions are followed, not their code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tasks.common.node import Params
from tasks.masked_diffusion.decoding import WHOLE, Ask, Decoded, Decoding, Denoiser, Prediction, Specials, Steps, drive, drive_together
from tasks.masked_diffusion.prefix_schedule import LspParams, prefix_schedule


class QuotaParams(Params):
    """A fixed number of tokens per call, the best ones by an order.

    Attributes:
        kind: tells schedulers apart in `params.yaml`.
        speedup: N / T, tokens per call on average: T = N / speedup calls.
        order: `confidence` (low-confidence remasking), `margin`, `entropy` or `random`.
        block: tokens per block, decoded from left to right; None: one block of N.
        seed: of the random order.
    """

    kind: Literal["quota"] = "quota"
    speedup: float = Field(1.0, ge=1)
    order: Literal["confidence", "margin", "entropy", "random"] = "confidence"
    block: int | None = Field(None, ge=1)
    seed: int = Field(0, ge=0)


class ThresholdParams(Params):
    """Every token whose confidence reaches a threshold, at least the surest one (Fast-dLLM's parallel decoding).

    Attributes:
        kind: tells schedulers apart in `params.yaml`.
        threshold: probability, in (0, 1].
        block: tokens per block; None: one block of N.
        cache: `none`; `prefix`: states before the block, computed anew when a block starts; `dual`: those behind it too.
    """

    kind: Literal["threshold"] = "threshold"
    threshold: float = Field(0.9, gt=0, le=1)
    block: int | None = Field(None, ge=1)
    cache: Literal["none", "prefix", "dual"] = "none"


class ProphetParams(Params):
    """Quota decoding that fills everything as soon as the gaps are wide enough.

    Attributes:
        kind: tells schedulers apart in `params.yaml`.
        gaps: thresholds on the margin in the first, second and last third of the calls.
        statistic: over masked positions, `mean` or `min`.
        speedup: of the quota schedule beneath.
    """

    kind: Literal["prophet"] = "prophet"
    gaps: tuple[float, float, float] = (7.5, 5.0, 2.5)
    statistic: Literal["mean", "min"] = "mean"
    speedup: float = Field(1.0, ge=1)


class LeftToRightParams(Params):
    """One token per call, from left to right.

    Attributes:
        kind: tells schedulers apart in `params.yaml`.
        cache: keep the states of committed tokens, or compute everything anew.
    """

    kind: Literal["ar"] = "ar"
    cache: Literal["prefix", "none"] = "prefix"


Scheduler = Annotated[
    LspParams | QuotaParams | ThresholdParams | ProphetParams | LeftToRightParams,
    Field(discriminator="kind"),
]


def decode(
    denoiser: Denoiser,
    prompt: Sequence[int],
    length: int,
    specials: Specials,
    scheduler: Scheduler,
    *,
    keep_margins: bool = False,
    device: str = "cpu",
) -> Decoded:
    """Decode one answer greedily.

    Args:
        denoiser: the model, see `tasks.masked_diffusion.decoding`.
        prompt: token ids (P,).
        length: answer tokens N; 0 gives an empty answer without a call.
        specials: mask, end and delimiter tokens.
        scheduler: which tokens to commit when.
        keep_margins: put the margins of every call into the trace.
        device: where the denoiser wants its tokens.

    Returns:
        tokens up to the first end token, counters, trace.

    Raises:
        ValueError: for an empty prompt, a length that blocks or calls do not divide, or a cache that the denoiser does not offer.

    >>> import torch
    >>> def denoiser(tokens, positions, cache):
    ...     return torch.nn.functional.one_hot(torch.ones_like(tokens), 3) * 9.0
    >>> found = decode(denoiser, [2, 2], 8, Specials(mask_id=0), QuotaParams(speedup=2))
    >>> found.counters.nfe, found.counters.token_forwards
    (4, 40)
    """
    decoding = Decoding(denoiser, prompt, length, specials, cached=cached(scheduler), keep_margins=keep_margins, device=device)
    drive(decoding, steps_of(decoding, scheduler))
    return decoding.result()


def decode_together(
    denoiser: Denoiser,
    prompts: Sequence[Sequence[int]],
    length: int,
    specials: Specials,
    scheduler: Scheduler,
    *,
    device: str = "cpu",
) -> list[Decoded]:
    """Decode answers to prompts of one length side by side, each as `decode` would, with calls in batches; only without a cache.

    Args:
        denoiser: takes tokens (B, L) and gives logits (B, L, V).
        prompts: token ids (B, P).
        length: answer tokens N.
        specials: mask, end and delimiter tokens.
        scheduler: which tokens to commit when; it keeps no states.
        device: where the denoiser wants its tokens.

    Raises:
        ValueError: for a scheduler with a cache or prompts of different lengths, and as in `decode`.
    """
    if cached(scheduler):
        raise ValueError("a scheduler with a cache decodes one answer at a time; set cache='none' or use decode")
    decodings = [Decoding(denoiser, prompt, length, specials, device=device) for prompt in prompts]
    drive_together(decodings, lambda one: steps_of(one, scheduler))
    return [one.result() for one in decodings]


def cached(scheduler: Scheduler) -> bool:
    """Whether it keeps states between calls."""
    return getattr(scheduler, "cache", "none") != "none"


def steps_of(decoding: Decoding, scheduler: Scheduler) -> Steps:
    """The scheduler at work on one answer; nothing happens where the answer has no tokens."""
    if not decoding.length:
        return
    match scheduler:
        case LspParams():
            yield from prefix_schedule(decoding, scheduler)
        case QuotaParams():
            yield from quota(decoding, scheduler)
        case ThresholdParams():
            yield from threshold(decoding, scheduler)
        case ProphetParams():
            yield from prophet(decoding, scheduler)
        case LeftToRightParams():
            yield from left_to_right(decoding, scheduler)


def quota_counts(tokens: int, calls: int) -> list[int]:
    """Tokens committed in each call: tokens // calls, the remainder spread over the first calls.

    >>> quota_counts(10, 4)
    [3, 3, 2, 2]
    """
    base, more = divmod(tokens, calls)
    return [base + (call < more) for call in range(calls)]


def calls_of(length: int, speedup: float, blocks: int = 1) -> int:
    """T / blocks, calls per block, where T = N / speedup.

    Raises:
        ValueError: if T is no whole number, or no multiple of the number of blocks.
    """
    calls = round(length / speedup)
    if calls < 1 or abs(calls * speedup - length) > 1e-6 * length:
        raise ValueError(f"N / speedup must be a whole number of calls, got {length} / {speedup}")
    if calls % blocks:
        raise ValueError(f"{calls} calls are no multiple of {blocks} blocks; choose another block or speedup")
    return calls // blocks


def blocks_of(length: int, block: int | None) -> list[tuple[int, int]]:
    """(start, stop) of the blocks of an answer.

    Raises:
        ValueError: if N is not divisible by the block.
    """
    size = block or length
    if length % size:
        raise ValueError(f"the answer's length must be divisible by the block, got {length} and {size}")
    return [(start, start + size) for start in range(0, length, size)]


def quota(decoding: Decoding, params: QuotaParams) -> Steps:
    """In every call the best masked positions of the block, so many that T calls finish; every call sees the whole sequence."""
    rng = np.random.default_rng(params.seed)
    blocks = blocks_of(decoding.length, params.block)
    per_block = calls_of(decoding.length, params.speedup, len(blocks))
    for start, stop in blocks:
        for count in quota_counts(stop - start, per_block):
            if decoding.done:
                return
            found = yield WHOLE
            masked = start + np.flatnonzero(~decoding.known[start:stop])
            scores = _scores(found, params.order, rng)[masked]
            _commit(decoding, found, masked[np.argsort(-scores, kind="stable")[:count]])


def threshold(decoding: Decoding, params: ThresholdParams) -> Steps:
    """In every call all masked positions of the block whose confidence reaches the threshold, at least the surest."""
    prompt = decoding.prompt_length
    for start, stop in blocks_of(decoding.length, params.block):
        first = True
        while not (decoding.done or decoding.known[start:stop].all()):
            if first or decoding.cache is None:
                found = yield Ask(wanted=prompt)
                if decoding.cache is not None:
                    _keep(decoding, prompt + start, params.cache)
            elif params.cache == "prefix":
                found = yield Ask(prompt + start)
            else:
                found = yield Ask(prompt + start, prompt + stop, visible=prompt + decoding.length)
                _keep(decoding, prompt + start, params.cache)
            first = False
            masked = start + np.flatnonzero(~decoding.known[start:stop])
            sure = found.confidence()[masked - found.first]
            chosen = masked[sure >= params.threshold]
            _commit(decoding, found, chosen if chosen.size else masked[[int(sure.argmax())]])


def prophet(decoding: Decoding, params: ProphetParams) -> Steps:
    """Quota decoding until the gaps of the masked positions exceed the threshold of this third of the calls; then all at once."""
    calls = calls_of(decoding.length, params.speedup)
    for call, count in enumerate(quota_counts(decoding.length, calls)):
        if decoding.done:
            return
        found = yield WHOLE
        masked = np.flatnonzero(~decoding.known)
        gaps = found.margins[masked]
        gap = float(gaps.mean() if params.statistic == "mean" else gaps.min())
        if gap >= params.gaps[min(3 * call // calls, 2)]:
            _commit(decoding, found, masked)
            return
        sure = found.confidence()[masked]
        _commit(decoding, found, masked[np.argsort(-sure, kind="stable")[:count]])


def left_to_right(decoding: Decoding, params: LeftToRightParams) -> Steps:
    """The first masked position in every call: the prefix schedule when no margin is ever enough."""
    yield from prefix_schedule(decoding, LspParams(tau_min=1e30, minimum=1, window=0, stability=0, cache=params.cache))


def _scores(found: Prediction, order: str, rng: np.random.Generator) -> np.ndarray:
    if order == "confidence":
        return found.confidence()
    if order == "margin":
        return found.margins
    if order == "entropy":
        return found.negative_entropy()
    return rng.random(len(found.tokens))


def _commit(decoding: Decoding, found: Prediction, places: np.ndarray) -> None:
    places = np.sort(places)
    decoding.commit(places, found.tokens[places - found.first])


def _keep(decoding: Decoding, upto: int, kind: str) -> None:
    """Freeze what lies before the block; a dual cache also reads the rows of the last call."""
    assert decoding.cache is not None
    if kind == "dual":
        decoding.cache.keep_all()
        decoding.cache.frozen = upto
    else:
        decoding.cache.freeze(upto)
