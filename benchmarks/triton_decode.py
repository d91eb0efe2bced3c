"""The Triton kernel of sparse decoding on one GPU: is it right, and how long does it take beside dense attention?

Prints the card, the largest deviation from the dense masked formula (float32 and bfloat16, several layouts of heads), and microseconds per
decode step at 32K and 128K keys: the fastest of torch's dense ways (the heads of a group folded into the query axis is one) against the
kernel from ready index lists. Selection is not timed here. Takes about a minute; without a GPU it says so and ends.
"""

from __future__ import annotations

from functools import partial

import torch

from tasks.attention.kernels.gather_decode import dense_variants, index_lists
from tasks.attention.kernels.triton_decode import sparse_decode
from tasks.attention.weighted import repeat_heads, scaled_logits, weighted_attention
from tasks.language_models.timing import interleaved

LAYOUTS = ((32, 32), (32, 8), (9, 3))
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def cache(heads: int, groups: int, n: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query (H, d), keys and values (G, n, d) on the device."""
    draw = torch.Generator("cuda").manual_seed(0)
    query = torch.randn(heads, width, generator=draw, device="cuda").to(dtype)
    keys, values = (torch.randn(groups, n, width, generator=draw, device="cuda").to(dtype) for _ in range(2))
    return query, keys, values


def deviations() -> None:
    """Print the largest difference to the dense masked formula for every layout and type; stop if one is too large."""
    for dtype, allowed in TOLERANCE.items():
        for heads, groups in LAYOUTS:
            query, keys, values = cache(heads, groups, 4000, 128, dtype)
            draw = torch.Generator("cuda").manual_seed(1)
            weights = (
                (torch.rand(heads, 4000, generator=draw, device="cuda") < 0.1) * 4 * torch.rand(heads, 4000, generator=draw, device="cuda")
            )
            logits = scaled_logits(query[None, :, None], keys[None])
            expected = weighted_attention(logits, weights[None, :, None], repeat_heads(values[None], heads))[0, :, 0]
            found = [sparse_decode(query, keys, values, *index_lists(weights), splits=splits) for splits in (1, 7, None)]
            worst = max(float((f - expected).abs().max()) for f in found)
            print(f"{dtype} {heads:3d} query, {groups:2d} key/value heads: largest deviation {worst:.1e} (allowed {allowed:.0e})")
            if not worst <= allowed:
                raise SystemExit("the kernel is wrong on this device")


def times() -> None:
    """Print microseconds per step and speed-ups over the fastest dense variant."""
    for n in (32_768, 131_072):
        for heads, groups in LAYOUTS[:2]:
            query, keys, values = cache(heads, groups, n, 128, torch.bfloat16)
            arms = dict(dense_variants(query, keys, values))
            dense = list(arms)
            for percent in (2, 5, 10, 20):
                order = torch.rand(heads, n, device="cuda").argsort(-1)[:, : n * percent // 100].sort(-1).values.int()
                ones = torch.ones(order.shape, device="cuda")
                arms[f"{percent} %"] = partial(sparse_decode, query, keys, values, order, ones)
            found = interleaved(arms, rounds=7, repeats=5, warm_up=3, device="cuda", minimum_ms=5.0)
            line = ", ".join(f"{arm} {1000 * found.median(arm):.0f} us" for arm in arms)
            gains = ", ".join(f"{arm} x{sorted(found.ratios(dense, arm))[3]:.1f}" for arm in arms if arm not in dense)
            print(f"{n // 1024}K keys, {heads}/{groups} heads, bfloat16: {line}; over the fastest dense: {gains}")


def main() -> None:
    """Run both where there is a GPU with Triton."""
    if not torch.cuda.is_available():
        print("no CUDA device here: the Triton kernel stays unmeasured")
        return
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    deviations()
    times()


if __name__ == "__main__":
    main()
