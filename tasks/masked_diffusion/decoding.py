"""Decoding one answer with a masked-diffusion model: what is known, what a call costs, and what was committed when.

A scheduler (`tasks.masked_diffusion.schedulers`) is a generator: it yields an `Ask`, is sent the `Prediction`, decides what to commit, and
repeats until the answer is `done`. `drive` runs one answer, `drive_together` many at once, whose calls are then one batch. All costs are
counted here, per answer, the same for every scheduler.

**The denoiser.** Any callable

    denoiser(tokens, positions, cache) -> logits

drives it: `tokens` (1, L) and `positions` (L,) are the inputs of this call, int64; `cache` is a `StateCache` or None; `logits` (1, L, V)
are the predictions for these positions. `drive_together` asks for B answers at once, (B, L) and (B, L, V), without a cache.
Without a cache the inputs are the whole sequence, and a transformers model is used as
`lambda tokens, positions, cache: model(tokens).logits`. With one the denoiser must call `cache.extend(layer, keys, values)` in every
attention layer, attend to all that it returns, and offer `new_cache(capacity)`. Where a model predicts position i at output i - 1,
an adapter shifts the logits and sets `lookback = 1`: the first `lookback` of them may then be anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from tasks.masked_diffusion.cache import StateCache


class Denoiser(Protocol):
    """What a masked-diffusion model must look like, see the module's text."""

    def __call__(self, tokens: torch.Tensor, positions: torch.Tensor, cache: StateCache | None, /) -> torch.Tensor:
        """Logits (1, L, V) for positions (L,)."""
        ...


@runtime_checkable
class Cacheable(Protocol):
    """A denoiser whose states can be kept."""

    def new_cache(self, capacity: int) -> StateCache:
        """An empty cache."""
        ...


@dataclass(frozen=True)
class Specials:
    """Token ids with a meaning.

    Attributes:
        mask_id: stands for "not known yet"; never committed.
        eos_id: ends an answer, or None.
        delimiters: tokens after which a block may end.

    Raises:
        ValueError: for a missing or negative mask id.
    """

    mask_id: int
    eos_id: int | None = None
    delimiters: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.mask_id is None or self.mask_id < 0:
            raise ValueError(f"mask_id must be a token id, got {self.mask_id}; name the model's mask token")


@dataclass(frozen=True)
class Counters:
    """What an answer cost, and how it came about.

    Attributes:
        nfe: calls of the denoiser.
        token_forwards: inputs of all calls together.
        attn_pairs: queries times keys of all calls, per layer and head.
        cache_writes: states that were frozen, again whenever they were computed again.
        contiguous_runs: largest number of separate runs of committed tokens after any iteration.
        flip_rate: share of positions still masked whose prediction differs from the call before, pooled over calls.
        commit_mean: tokens committed per iteration.
    """

    nfe: int
    token_forwards: int
    attn_pairs: int
    cache_writes: int
    contiguous_runs: int
    flip_rate: float
    commit_mean: float


@dataclass
class Trace:
    """How an answer came about, iteration by iteration.

    Attributes:
        committed: iteration in which each answer token was committed, from 0, (N,); -1 for those behind the end.
        active: masked tokens before each call.
        flips: share of flips of each call; NaN where nothing could be compared.
        appends: (start, stop) of writes to the cache.
        margins: of every call, (N,) with NaN at committed positions, if they were asked for.
        thresholds: (tau, length before snapping, length committed) of the calls of a prefix scheduler.
    """

    committed: np.ndarray
    active: list[int] = field(default_factory=list)
    flips: list[float] = field(default_factory=list)
    appends: list[tuple[int, int]] = field(default_factory=list)
    margins: list[np.ndarray] = field(default_factory=list)
    thresholds: list[tuple[float, int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Decoded:
    """An answer: its tokens up to and including the first `eos_id`, what it cost, and its trace."""

    tokens: list[int]
    counters: Counters
    trace: Trace


@dataclass(frozen=True)
class Prediction:
    """Predictions for the answer positions first, first + 1, ... (counted from the answer's start).

    Attributes:
        first: the first of them.
        tokens: likeliest token of each, the mask excluded, (n,).
        margins: logit of the first minus that of the second, (n,), float32.
        logits: all, (n, V), float32, minus infinity for the mask.
    """

    first: int
    tokens: np.ndarray
    margins: np.ndarray
    logits: torch.Tensor

    def confidence(self) -> np.ndarray:
        """Probability of the likeliest token, (n,)."""
        found: np.ndarray = (self.logits.amax(-1) - self.logits.logsumexp(-1)).exp().cpu().numpy()
        return found

    def negative_entropy(self) -> np.ndarray:
        """Minus the entropy in nats, (n,)."""
        logs = self.logits.log_softmax(-1)
        found: np.ndarray = torch.where(logs.isneginf(), 0.0, logs.exp() * logs).sum(-1).cpu().numpy()
        return found


@dataclass(frozen=True)
class Ask:
    """Which call a scheduler wants.

    Attributes:
        start: first position of the inputs, counted from the prompt's start; with a cache, states before it are frozen.
        stop: position behind the last input; default the whole sequence.
        wanted: first position (counted from the prompt's start) that is to be predicted; default the first answer position
            among the inputs.
        visible: rows of the cache that may be read, see `StateCache.begin`.
    """

    start: int = 0
    stop: int | None = None
    wanted: int | None = None
    visible: int | None = None


WHOLE = Ask()
"""The whole sequence goes in, all answer positions come out."""

Steps = Generator[Ask, Prediction, None]
"""A scheduler at work on one answer."""


class Decoding:
    """One answer in the making.

    Args:
        denoiser: the model, see the module's text.
        prompt: token ids (P,), P >= 1.
        length: answer tokens N, at least 0.
        specials: token ids with a meaning.
        cached: keep states between calls.
        keep_margins: put the margins of every call into the trace.
        device: where tokens lie.

    Raises:
        ValueError: for an empty prompt, a negative length, or `cached` with a denoiser that has no `new_cache`.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        prompt: Sequence[int],
        length: int,
        specials: Specials,
        *,
        cached: bool = False,
        keep_margins: bool = False,
        device: str | torch.device = "cpu",
    ) -> None:
        if len(prompt) < 1:
            raise ValueError("the prompt is empty; give it at least one token")
        if length < 0:
            raise ValueError(f"length must be at least 0, got {length}")
        if cached and not isinstance(denoiser, Cacheable):
            raise ValueError(f"{type(denoiser).__name__} has no new_cache(capacity), so nothing can be kept; decode with cache='none'")
        self.denoiser, self.specials = denoiser, specials
        self.prompt_length, self.length = len(prompt), length
        total = self.prompt_length + length
        self.cache: StateCache | None = denoiser.new_cache(total) if cached and isinstance(denoiser, Cacheable) else None
        self.inputs = torch.full((1, total), specials.mask_id, dtype=torch.long, device=device)
        self.inputs[0, : self.prompt_length] = torch.as_tensor(np.asarray(prompt, dtype=np.int64), device=device)
        self.known = np.zeros(length, dtype=bool)
        self.answer = np.full(length, -1, dtype=np.int64)
        self.trace = Trace(np.full(length, -1, dtype=np.int64))
        self._positions = torch.arange(total, device=device)
        self._lookback = int(getattr(denoiser, "lookback", 0))
        self._keep_margins = keep_margins
        self._last = np.full(length, -1, dtype=np.int64)
        self._calls = self._inputs = self._pairs = self._flips = self._compared = self._runs = self._commits = 0

    @property
    def end(self) -> int:
        """Answer tokens that matter: up to and including the first committed `eos_id`, else all."""
        if self.specials.eos_id is None:
            return self.length
        ends = np.flatnonzero(self.answer == self.specials.eos_id)
        return int(ends[0]) + 1 if ends.size else self.length

    @property
    def done(self) -> bool:
        """Whether every answer token that matters is committed."""
        return bool(self.known[: self.end].all())

    @torch.inference_mode()
    def predict(self, ask: Ask = WHOLE) -> Prediction:
        """Call the denoiser once; predictions from `ask.wanted` to `ask.stop`."""
        total = self.prompt_length + self.length
        stop = total if ask.stop is None else ask.stop
        first = max(ask.start, self.prompt_length) if ask.wanted is None else ask.wanted
        start = max(0, first - self._lookback) if first - ask.start < self._lookback else ask.start
        if self.cache is not None:
            self.cache.begin(start, stop - start, ask.visible)
        logits = self.denoiser(self.inputs[:, start:stop], self._positions[start:stop], self.cache)
        tokens, margins, logits = likeliest(logits[:, first - start :], self.specials.mask_id)
        found = Prediction(first - self.prompt_length, tokens[0], margins[0], logits[0])
        self._count(stop - start, ask.visible if ask.visible is not None else stop if self.cache is not None else stop - start, found)
        return found

    @staticmethod
    @torch.inference_mode()
    def predict_together(decodings: Sequence[Decoding], asks: Sequence[Ask]) -> list[Prediction]:
        """One call for answers of one length without a cache: the whole sequences go in."""
        one = decodings[0]
        logits = one.denoiser(torch.cat([each.inputs for each in decodings]), one._positions, None)
        tokens, margins, logits = likeliest(logits[:, one.prompt_length :], one.specials.mask_id)
        found = []
        for row, (each, ask) in enumerate(zip(decodings, asks, strict=True)):
            first = 0 if ask.wanted is None else ask.wanted - one.prompt_length
            found.append(Prediction(first, tokens[row, first:], margins[row, first:], logits[row, first:]))
            each._count(len(one._positions), len(one._positions), found[-1])
        return found

    def _count(self, inputs: int, keys: int, found: Prediction) -> None:
        self._calls += 1
        self._inputs += inputs
        self._pairs += inputs * keys
        now = np.full(self.length, -1, dtype=np.int64)
        now[found.first : found.first + len(found.tokens)] = found.tokens
        now[self.known] = -1
        both = (now >= 0) & (self._last >= 0)
        flips, compared = int((now != self._last)[both].sum()), int(both.sum())
        self._flips += flips
        self._compared += compared
        self._last = now
        self.trace.active.append(int((~self.known).sum()))
        self.trace.flips.append(flips / compared if compared else math.nan)
        if self._keep_margins:
            margins = np.full(self.length, np.nan)
            margins[found.first : found.first + len(found.tokens)] = found.margins
            margins[self.known] = np.nan
            self.trace.margins.append(margins)

    def commit(self, places: np.ndarray | Sequence[int], tokens: np.ndarray | Sequence[int]) -> None:
        """Commit tokens at places of the answer, for good.

        Raises:
            ValueError: for no place, one that is committed already, or the mask as a token.
        """
        places, tokens = np.asarray(places, dtype=np.int64), np.asarray(tokens, dtype=np.int64)
        if places.size == 0:
            raise ValueError("nothing to commit; a scheduler must commit at least one token per call")
        if self.known[places].any():
            raise ValueError(f"positions {places[self.known[places]].tolist()} are committed already")
        if (tokens == self.specials.mask_id).any():
            raise ValueError("the mask cannot be committed")
        self.known[places] = True
        self.answer[places] = tokens
        self.trace.committed[places] = self._commits
        self.inputs[0, self.prompt_length + torch.from_numpy(places)] = torch.from_numpy(tokens).to(self.inputs.device)
        self._commits += 1
        starts = int(self.known[0]) + int((self.known[1:] & ~self.known[:-1]).sum())
        self._runs = max(self._runs, starts)

    def result(self) -> Decoded:
        """The answer, once it is done."""
        kept = self.end
        if self.cache is not None:
            self.trace.appends = list(self.cache.appends)
        committed = int(self.known.sum())
        counters = Counters(
            nfe=self._calls,
            token_forwards=self._inputs,
            attn_pairs=self._pairs,
            cache_writes=self.cache.written if self.cache is not None else 0,
            contiguous_runs=self._runs,
            flip_rate=self._flips / self._compared if self._compared else 0.0,
            commit_mean=committed / self._commits if self._commits else 0.0,
        )
        return Decoded(self.answer[:kept].tolist(), counters, self.trace)


def likeliest(logits: torch.Tensor, mask_id: int) -> tuple[np.ndarray, np.ndarray, torch.Tensor]:
    """Likeliest tokens (B, n), their margins (B, n), and the logits (B, n, V) in float32 without the mask."""
    logits = logits.float()
    logits[..., mask_id] = -math.inf
    best = logits.topk(2, -1)
    return best.indices[..., 0].cpu().numpy(), (best.values[..., 0] - best.values[..., 1]).cpu().numpy(), logits


def drive(decoding: Decoding, steps: Steps) -> None:
    """Let a scheduler finish one answer."""
    ask = next(steps, None)
    while ask is not None:
        ask = _send(steps, decoding.predict(ask))


def drive_together(decodings: Sequence[Decoding], schedule: Callable[[Decoding], Steps]) -> None:
    """Let a scheduler finish answers of one denoiser side by side; every round of calls is one batch.

    Only without a cache, where every call has the whole sequence as its input, and for prompts and answers of one length.

    Raises:
        ValueError: for decodings with a cache, or of different lengths.
    """
    shapes = {(one.prompt_length, one.length) for one in decodings}
    if len(shapes) > 1 or any(one.cache is not None for one in decodings):
        raise ValueError(f"answers decoded together have one length and no cache, got (prompt, answer) lengths {sorted(shapes)}")
    working = [(one, schedule(one)) for one in decodings]
    waiting = [(one, steps, ask) for one, steps in working if (ask := next(steps, None)) is not None]
    while waiting:
        found = Decoding.predict_together([one for one, _, _ in waiting], [ask for _, _, ask in waiting])
        sent = [(one, steps, _send(steps, prediction)) for (one, steps, _), prediction in zip(waiting, found, strict=True)]
        waiting = [(one, steps, ask) for one, steps, ask in sent if ask is not None]


def _send(steps: Steps, found: Prediction) -> Ask | None:
    try:
        return steps.send(found)
    except StopIteration:
        return None


def counters_of(found: Sequence[Decoded]) -> dict[str, float]:
    """Every counter's mean over answers."""
    names: list[str] = list(Counters.__dataclass_fields__)
    return {name: float(np.mean([_counter(one, name) for one in found])) for name in names}


def _counter(found: Decoded, name: str) -> Any:
    return getattr(found.counters, name)
