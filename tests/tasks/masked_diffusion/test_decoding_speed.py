from __future__ import annotations

import itertools

from diffusion_twins import MASK

from tasks.masked_diffusion.decoding import Specials
from tasks.masked_diffusion.decoding_speed import TIMED, DecodingSpeedParams, clock_of, forced_network, rounds_of, time_lengths
from tasks.masked_diffusion.prefix_schedule import LspParams
from tasks.masked_diffusion.schedulers import decode

TINY = DecodingSpeedParams(width=16, layers=1, heads=2, hidden=32, rounds=2, prompt=4)


def test_rounds_take_turns_and_measure_with_the_given_clock():
    order, ticks = [], itertools.count()
    work = {name: (lambda name=name: order.append(name)) for name in "abc"}
    rows = rounds_of(work, 2, lambda: float(next(ticks)))
    assert order == [*"abc", *"abc", *"bca"]
    assert rows == [{"a": 1.0, "b": 1.0, "c": 1.0}] * 2


def test_forced_networks_commit_the_same_blocks_with_and_without_a_cache():
    denoiser = forced_network(24, 0, TINY)
    found = [decode(denoiser, [2] * 4, 24, Specials(MASK), LspParams(cache=cache)) for cache in ("prefix", "none")]
    assert found[0].trace.committed.tolist() == found[1].trace.committed.tolist()
    assert found[0].counters.token_forwards < found[1].counters.token_forwards


def test_lengths_are_timed_for_all_arms():
    rows = time_lengths((16, 0, TINY))
    assert len(rows) == 2
    assert set(rows[0]) == {"cached", "uncached", "uncached_again", "quota"}
    assert all(value >= 0 for row in rows for value in row.values())


def test_the_clock_of_a_cpu_is_the_processes_own():
    import time

    assert clock_of("cpu") is time.process_time


def test_the_node_reports_ratios(smoke):
    metrics = smoke[1]["evaluate-speed"]
    assert metrics["quota.latency_ratio.trace"] == 1.0
    assert {f"{arm}.latency_ratio.trace" for arm in TIMED} <= set(metrics)
    assert {f"cached.latency_ratio.n{n}" for n in (16, 32)} <= set(metrics)
