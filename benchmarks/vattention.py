"""What a decode step of attention costs, dense and sparse, by context, density and layout of heads.

On a CPU the sparse step is one kernel that selects and attends, in one thread and in CPU seconds; `attend alone` is the same from ready
lists. On a GPU (`--device cuda`) the Triton kernel reads ready lists and the baseline is torch's dense attention; before anything is
timed its output is compared with the dense masked formula.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial

import torch

from tasks.attention.kernels import fused_decode, gather_decode
from tasks.attention.speed import DENSE, SpeedParams, arms_of
from tasks.attention.weighted import weighted_attention
from tasks.language_models.timing import interleaved

LAYOUTS = {"8 query, 8 key/value heads": (8, 8), "8 query, 2 key/value heads": (8, 2), "32 query, 8 key/value heads": (32, 8)}


def on_cpu(contexts: list[int], densities: tuple[int, ...], rounds: int, dtype: torch.dtype) -> None:
    """Print one line per context, layout and density."""
    torch.set_num_threads(1)
    print(f"{'keys':>7}  {'heads':28} {'read':>5} {'best dense ms':>14} {'sparse ms':>10} {'speed-up':>9} {'attend alone':>13}")
    for n in contexts:
        for name, (heads, groups) in LAYOUTS.items():
            draws = torch.Generator().manual_seed(0)
            keys, values = (torch.randn(groups, n, 128, generator=draws).to(dtype) for _ in range(2))
            query, planes = torch.randn(heads, 128, generator=draws), fused_decode.signature_planes(128, draws)
            params = SpeedParams(contexts=(n,), heads=heads, groups={"timed": groups}, densities=densities)
            arms, _ = arms_of(query, keys, values, fused_decode.signatures(keys, planes), planes, params)
            times = interleaved(arms, rounds=rounds, repeats=1, warm_up=1, minimum_ms=2.0)
            dense = statistics.median(times.best(DENSE))
            for percent in densities:
                sparse, attend = f"numba_{percent:02d}", f"attend_{percent:02d}"
                gains = [statistics.median(times.ratios(DENSE, arm)) for arm in (sparse, attend)]
                print(f"{n:7}  {name:28} {percent:4}% {dense:14.2f} {times.median(sparse):10.2f} {gains[0]:8.1f}x {gains[1]:12.1f}x")


def on_gpu(contexts: list[int], densities: tuple[int, ...], rounds: int) -> None:
    """Print the Triton kernel beside dense attention, after a check of its output."""
    from tasks.attention.kernels.triton_decode import sparse_decode

    print(torch.cuda.get_device_name())
    print(f"{'keys':>7}  {'heads':28} {'read':>5} {'best dense ms':>14} {'triton ms':>10} {'speed-up':>9} {'largest difference':>19}")
    for n in contexts:
        for name, (heads, groups) in LAYOUTS.items():
            draws = torch.Generator(device="cuda").manual_seed(0)
            keys, values = (torch.randn(groups, n, 128, generator=draws, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            query = torch.randn(heads, 128, generator=draws, device="cuda", dtype=torch.bfloat16)
            dense = gather_decode.dense_variants(query, keys, values)
            for percent in densities:
                read = torch.rand(heads, n, generator=draws, device="cuda").argsort(-1)[:, : max(n * percent // 100, 1)]
                indices, weights = read.sort(-1).values.int(), torch.full(read.shape, 100 / percent, device="cuda")
                arms = {**dense, "triton": partial(sparse_decode, query, keys, values, indices, weights)}
                difference = (arms["triton"]().float() - masked(query, keys, values, indices, weights)).abs().max()
                times = interleaved(arms, rounds=rounds, repeats=5, warm_up=3, device="cuda", minimum_ms=1.0)
                gain = statistics.median(times.ratios(tuple(dense), "triton"))
                best = statistics.median(times.best(tuple(dense)))
                print(f"{n:7}  {name:28} {percent:4}% {best:14.3f} {times.median('triton'):10.3f} {gain:8.1f}x {float(difference):19.4f}")


def masked(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The dense masked formula for one decode step, (H, d)."""
    heads, groups, n = query.shape[0], keys.shape[0], keys.shape[1]
    spread = torch.zeros(heads, n, device=query.device).scatter_(1, indices.long(), weights)
    shared = heads // groups
    logits = (query.float().view(groups, shared, -1) @ keys.float().transpose(1, 2)) / query.shape[-1] ** 0.5
    return weighted_attention(logits, spread.view(groups, shared, n), values.float()).reshape(heads, -1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contexts", type=int, nargs="+", default=[8192, 32768, 131072])
    parser.add_argument("--densities", type=int, nargs="+", default=[2, 5, 10, 20], help="percent of keys read")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of a CPU's cache; a GPU's is bfloat16")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()
    densities = tuple(arguments.densities)
    if arguments.device == "cuda":
        on_gpu(arguments.contexts, densities, arguments.rounds)
    else:
        on_cpu(arguments.contexts, densities, arguments.rounds, getattr(torch, arguments.dtype))


if __name__ == "__main__":
    main()
