"""What low-rank attention costs and saves: fine-tuning time by rank, and decoding from latents by rank and by length of the cache.

Everything runs in one process with one thread, arms taking turns; figures are medians of rounds, ratios are taken within a round, and
seconds are the process's own. Decoding is by the numba kernel of `tasks.low_rank.kernels`, with queries absorbed (no rotary positions); the
last table is a whole transformers model (`--model DIR`) with its values, or keys and values, cached as latents. About two
minutes on an idle core; `--rounds` makes it shorter.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tasks.language_models.timing import interleaved
from tasks.low_rank.speed import SpeedParams, decode_arms

if TYPE_CHECKING:
    import torch

RANKS = (16, 24, 32, 48, 64)
LENGTHS = (2048, 8192, 32768)


def tuning(repeat: int) -> None:
    """CPU seconds of 100 steps on the six key and value heads of one layer (E = 576, H = 64), by rank."""
    import torch

    from tasks.low_rank.fine_tuning import fine_tune

    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 576, 64, generator=draw)
    fisher = torch.rand(6, 576, 64, generator=draw) ** 4 + 1e-3
    fine_tune(fisher, weight, *_start(weight, RANKS[0]), steps=2, rate=1e-3)  # the first steps of a process are slow
    print("rank  seconds per 100 steps  weighted error before -> after")
    for rank in RANKS[:-1]:
        A, B = _start(weight, rank)
        times = []
        for _ in range(repeat):
            before = time.process_time()
            path = fine_tune(fisher, weight, A, B, steps=100, rate=1e-3)
            times.append(time.process_time() - before)
        print(f"{rank:4d}  {statistics.median(times):21.2f}  {path.objective[0, 0]:.3f} -> {path.objective[-1, 0]:.3f}")


def _start(weight: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    from tasks.low_rank.factorisations import Plain, spectrum, truncate_heads

    start = truncate_heads(spectrum(weight, Plain()), rank)
    return start.A, start.B


def decoding(rounds: int) -> None:
    """Milliseconds of one decoding step and speed-up over dense attention, by length and by rank."""
    params = SpeedParams(lengths=LENGTHS, ranks=RANKS, rounds=rounds)
    print("cache   " + " ".join(f"{name:>14}" for name in ("dense ms", *(f"r={r}" for r in RANKS), "shared reread", "shared once")))
    for length in LENGTHS:
        arms, _ = decode_arms(params, length, np.random.default_rng(0))
        wanted = ["dense", *(f"per_head_{r}" for r in RANKS), "shared_reread", "shared_once"]
        found = interleaved({name: arms[name] for name in wanted}, rounds=rounds)
        ratios = [statistics.median(found.ratios("dense", name)) for name in wanted[1:]]
        print(f"{length:6d}  {found.median('dense'):14.2f} " + " ".join(f"{ratio:13.2f}x" for ratio in ratios))


def whole_model(folder: Path, rounds: int, context: int) -> None:
    """Milliseconds per token of a model before and after, values or keys and values as latents at half of the cache."""
    from tasks.language_models.pretrained import load_model
    from tasks.low_rank.apply import CompressParams, decode_speed, with_factors
    from tasks.low_rank.attention import attention_blocks
    from tasks.low_rank.methods import spectra_of, truncated

    model, _ = load_model(folder)
    blocks = attention_blocks(model)
    rank = blocks[0].head_dim // 2
    factors = truncated(
        "head_svd", spectra_of("head_svd", blocks, [None] * len(blocks), ("k", "v")), blocks, 0.5, projections=("k", "v"), rank=rank
    )  # type: ignore[list-item]  # plain SVD reads no statistics
    import torch

    ids = torch.arange(context)[None] % model.config.vocab_size
    for cache in ("whole", "latent"):
        found = decode_speed(model, with_factors(model, factors), ids, CompressParams(model=folder, context=context, cache=cache), rounds)
        print(f"keys {cache}: " + ", ".join(f"{name} {value:.3g}" for name, value in found.items()))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", type=Path, help="folder of a transformers model, for the last table")
    parser.add_argument("--context", type=int, default=2048)
    given = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    tuning(min(given.rounds, 3))
    print()
    decoding(given.rounds)
    if given.model:
        print()
        whole_model(given.model, given.rounds, given.context)


if __name__ == "__main__":
    main()
