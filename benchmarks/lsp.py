"""Time and work of schedulers by answer length: the prefix schedule with and without a cache, one token per call, threshold decoding.

Networks have random weights and predictions are forced, so that every scheduler decodes the same answer with the same margins; only what it
commits per call differs. CPU seconds of this process, one thread, medians of rounds in which all take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial

import torch

from tasks.masked_diffusion.decoding import Specials
from tasks.masked_diffusion.decoding_speed import DecodingSpeedParams, forced_network, rounds_of
from tasks.masked_diffusion.prefix_schedule import LspParams
from tasks.masked_diffusion.schedulers import QuotaParams, Scheduler, ThresholdParams, decode

ARMS: dict[str, Scheduler] = {
    "LSP, cached": LspParams(),
    "LSP, no cache": LspParams(cache="none"),
    "LSP, beta 1": LspParams(beta=1.0),
    "literal, cached": LspParams(tau_min=None),
    "threshold, no cache": ThresholdParams(block=32),
    "threshold, prefix": ThresholdParams(block=32, cache="prefix"),
    "threshold, dual": ThresholdParams(block=32, cache="dual"),
}
ONE_TOKEN = {"one token per call": QuotaParams()}


def main() -> None:
    """Measure and print one line per length and scheduler."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256], help="multiples of 32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--slowest", type=int, default=128, help="longest answer that is decoded one token per call")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    params = DecodingSpeedParams(width=arguments.width, layers=arguments.layers, hidden=2 * arguments.width)
    print(f"{'N':>5} {'scheduler':22} {'calls':>6} {'token forwards':>15} {'attention pairs':>16} {'ms':>9} {'tokens/s':>9}")
    for length in arguments.lengths:
        denoiser, prompt, specials = forced_network(length, 0, params), [2] * params.prompt, Specials(0)
        arms = {**ARMS, **(ONE_TOKEN if length <= arguments.slowest else {})}
        work = {name: partial(decode, denoiser, prompt, length, specials, s) for name, s in arms.items()}
        rows = rounds_of(work, arguments.rounds, time.process_time)
        for name, scheduler in arms.items():
            counters = decode(denoiser, prompt, length, specials, scheduler).counters
            seconds = statistics.median(row[name] for row in rows)
            print(
                f"{length:5} {name:22} {counters.nfe:6} {counters.token_forwards:15} {counters.attn_pairs:16} "
                f"{1000 * seconds:9.1f} {length / seconds:9.0f}"
            )


if __name__ == "__main__":
    main()
