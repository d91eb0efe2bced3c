"""Leaf stage that times decoding from dense and from latent caches, side by side in one process on one thread.

One token attends to a cache, as at every step of decoding. All arms but torch's own attention are the same numba kernel
(`tasks.low_rank.kernels.latent_decode`), so that a ratio compares layouts and not implementations:

- `dense`: keys and values of every head; `sdpa` is the same in torch;
- `per_head_<r>`: latents of rank r for every head, queries absorbed (models without rotary positions);
- `shared_reread`: one latent of rank R for all heads, read again by each of them, as the factorisation of the whole matrix implies;
- `shared_once`: the same latent, read once for all heads in one pass (multi-head latent attention);
- `values_<r>`: dense keys, latent values, what rotary models can use without rebuilding keys;
- `rotary_<r>`: latents for both, keys rebuilt and rotated tile by tile.

Times of the arms with absorbed queries include the absorption. The folding of B_V into the output projection is not timed: it makes that
projection smaller. All caches lie in one allocation: an array of its own size gets other memory pages, small or huge, which alone makes
reading it twice as fast or slow. Calls take several caches in turn, whichever arm makes them: a call that reads the cache of the call
before finds it in the processor's own, which hides what the claim is about, the reading of memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pydantic import Field

from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.language_models.timing import Rounds, interleaved
from tasks.low_rank.kernels.latent_decode import flash_decode, flash_decode_with_rope
from tasks.low_rank.kernels.reference import rotary_frequencies

DENSE = ("sdpa", "dense")
MIN_COPIES = 3


class SpeedParams(Params):
    """What is timed.

    Attributes:
        lengths: tokens in the cache.
        heads: query heads, each with keys and values of its own.
        head_dim: H.
        ranks: of latents per head.
        shared_rank: of the latent that all heads share.
        rotary_rank: of the arms for models with rotary positions.
        spread_mb: memory that the caches in turn take together, several times what the processor's last cache holds.
        rounds: repetitions, each of which gives one ratio.
        repeats: calls in a round, of which the median counts.
    """

    lengths: tuple[int, ...] = Field((8192, 32768), min_length=1)
    heads: int = Field(16, ge=1)
    head_dim: int = Field(64, ge=2, multiple_of=2)
    ranks: tuple[int, ...] = Field((32, 48), min_length=1)
    shared_rank: int = Field(184, ge=1)
    rotary_rank: int = Field(32, ge=1)
    spread_mb: float = Field(1600.0, gt=0)
    rounds: int = Field(7, ge=2)
    repeats: int = Field(3, ge=1)


class Arena:
    """Random arrays that start at cache lines of one large allocation, in several copies.

    Args:
        floats: what is drawn, at most.
        copies: of everything.
        rng: fills the first copy.
    """

    LINE = 16

    def __init__(self, floats: int, copies: int, rng: np.random.Generator) -> None:
        self._memory, self._copies, self._rng = np.empty(floats * copies, np.float32), copies, rng
        self._next = -(self._memory.ctypes.data // 4) % self.LINE

    def draw(self, *shape: int) -> list[np.ndarray]:
        """Standard normal numbers of this shape, float32, the same in every copy.

        Raises:
            ValueError: if the memory is used up.
        """
        size = int(np.prod(shape))
        found: list[np.ndarray] = []
        for _ in range(self._copies):
            part = self._memory[self._next : self._next + size].reshape(shape)
            if found:
                part[...] = found[0]
            else:
                self._rng.standard_normal(dtype=np.float32, out=part)
            found.append(part)
            self._next += -(-size // self.LINE) * self.LINE
        return found


def copies_of(params: SpeedParams, length: int) -> int:
    """How many caches of a length are read in turn: as many as the spread takes, at least three."""
    return max(MIN_COPIES, math.ceil(params.spread_mb * 1e6 / (4 * _floats(params, length))))


def _floats(params: SpeedParams, length: int) -> int:
    h, H, ranks = params.heads, params.head_dim, (*params.ranks, params.rotary_rank)
    per_slot = h * (2 * H + 2 * sum(ranks)) + 4 * params.shared_rank
    small = h * H * (1 + sum(ranks) + 2 * params.shared_rank)
    return length * per_slot + small + 1024


def decode_arms(params: SpeedParams, length: int, rng: np.random.Generator) -> tuple[dict[str, Callable[[], object]], dict[str, float]]:
    """One step of decoding per arm, as functions, and the bytes of cache that each of them reads.

    Every call, of whichever arm, takes the next of `copies_of(params, length)` caches.
    """
    import torch

    h, H, r = params.heads, params.head_dim, params.rotary_rank
    copies = copies_of(params, length)
    draw = Arena(_floats(params, length), copies, rng).draw
    turn = itertools.cycle(range(copies))

    def absorbed(cache_heads: int, rank: int, reads: int) -> Callable[[], object]:
        C_K, C_V, B_K = draw(1, cache_heads, length, rank), draw(1, cache_heads, length, rank), draw(h, rank, H)

        def step() -> object:
            i = next(turn)
            latent_q = np.ascontiguousarray(np.einsum("bhd,hrd->bhr", q[i], B_K[i]))
            return flash_decode(latent_q, C_K[i], C_V[i], scale=H**-0.5, heads_per_read=reads)

        return step

    q, K, V = draw(1, h, H), draw(1, h, length, H), draw(1, h, length, H)
    tensors = [[torch.from_numpy(part) for part in (query[:, :, None], k, v)] for query, k, v in zip(q, K, V, strict=True)]
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def dense() -> object:
        i = next(turn)
        return flash_decode(q[i], K[i], V[i])

    def fused() -> object:
        query, keys, values = tensors[next(turn)]
        return sdpa(query, keys, values)

    arms: dict[str, Callable[[], object]] = {"sdpa": fused, "dense": dense}
    floats = {"sdpa": 2.0 * h * H, "dense": 2.0 * h * H}
    for rank in params.ranks:
        arms[f"per_head_{rank}"], floats[f"per_head_{rank}"] = absorbed(h, rank, 1), 2.0 * h * rank
    arms["shared_reread"], floats["shared_reread"] = absorbed(1, params.shared_rank, 1), 2.0 * h * params.shared_rank
    arms["shared_once"], floats["shared_once"] = absorbed(1, params.shared_rank, h), 2.0 * params.shared_rank
    C, B_K = draw(1, h, length, r), draw(h, r, H)
    positions, frequencies = np.arange(length)[None], rotary_frequencies(H).numpy()

    def values() -> object:
        i = next(turn)
        return flash_decode(q[i], K[i], C[i])

    def rotary() -> object:
        i = next(turn)
        return flash_decode_with_rope(q[i], C[i], B_K[i], C[i], positions, frequencies)

    arms[f"values_{r}"], floats[f"values_{r}"] = values, float(h * (H + r))
    arms[f"rotary_{r}"], floats[f"rotary_{r}"] = rotary, 2.0 * h * r
    return arms, {arm: 4.0 * length * count for arm, count in floats.items()}


def evaluate(params: SpeedParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<arm>.{ms,read_mb}.<length>`, and over rounds `<arm>.speedup.<length>` over `dense` and `<arm>.speedup_sdpa.<length>`."""
    metrics: Metrics = {}
    found: dict[str, Rounds] = {}
    for length in log.progress(params.lengths, desc="cache lengths"):
        name = length_name(length)
        ((rounds, read),) = map_parallel(_measured, [(params, length)], workers=1)
        found[name] = rounds
        for arm, times in rounds.milliseconds.items():
            metrics |= summarise(f"{arm}.ms.{name}", list(times))
            metrics[f"{arm}.read_mb.{name}"] = read[arm] / 1e6
            if arm not in DENSE:
                metrics |= summarise(f"{arm}.speedup.{name}", rounds.ratios("dense", arm))
                metrics |= summarise(f"{arm}.speedup_sdpa.{name}", rounds.ratios("sdpa", arm))
    log.figure("latency", latency_figure(found, metrics))
    return metrics


def length_name(length: int) -> str:
    """How a cache length is called in metrics.

    >>> length_name(8192), length_name(100)
    ('8k', '100')
    """
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)


def _measured(item: tuple[SpeedParams, int]) -> tuple[Rounds, dict[str, float]]:
    params, length = item
    arms, read = decode_arms(params, length, np.random.default_rng(length))
    return interleaved(arms, rounds=params.rounds, repeats=params.repeats), read


def latency_figure(found: dict[str, Rounds], metrics: Metrics) -> object:
    """Milliseconds per decoded token beside the bytes that an arm reads, one column per cache length."""
    from tasks.common.plotting import COLOURS, figure

    sheet, axes = figure(8.0, 5.2, rows=2, columns=len(found), squeeze=False, sharey="row")
    for column, (name, rounds) in enumerate(found.items()):
        arms = list(rounds.milliseconds)
        for row, (values, label) in enumerate(
            (([rounds.median(arm) for arm in arms], "ms per token"), ([metrics[f"{arm}.read_mb.{name}"] for arm in arms], "MB read"))
        ):
            ax = axes[row, column]
            bars = ax.barh(
                arms, values, color=[COLOURS[7] if arm in DENSE else COLOURS[0] if "per_head" in arm else COLOURS[1] for arm in arms]
            )
            ax.bar_label(bars, fmt="%.1f", padding=2, fontsize=8)
            ax.set_xlabel(label)
            ax.margins(x=0.15)
            if column == 0:  # the columns share it
                ax.invert_yaxis()
        axes[0, column].set_title(f"{name} tokens in the cache")
    return sheet
