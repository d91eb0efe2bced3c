"""How long things take, side by side in one process: warm-up, rounds in which every arm has its turn, medians, ratios within a round.

On a CPU the clock is that of the process, which stands still while other processes run and counts the threads of this one; on a GPU it is
the wall's, after a synchronisation. A time is worth little without the number of threads, which belongs beside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Action = Callable[[], object]


@dataclass(frozen=True)
class Rounds:
    """Times of every arm in every round.

    Attributes:
        milliseconds: arm -> one median per round.
        threads: threads of torch while it was measured.
        clock: `process` or `wall`.
    """

    milliseconds: Mapping[str, Sequence[float]]
    threads: int
    clock: str

    def median(self, arm: str) -> float:
        """Milliseconds per call: the median of the rounds."""
        return statistics.median(self.milliseconds[arm])

    def best(self, arms: Sequence[str]) -> list[float]:
        """In each round the time of the fastest of several arms: the fair baseline."""
        return [min(times) for times in zip(*(self.milliseconds[arm] for arm in arms), strict=True)]

    def ratios(self, slow: str | Sequence[str], fast: str) -> list[float]:
        """Speed-up of `fast` over `slow` (over the fastest of several) in each round."""
        baseline = self.best([slow] if isinstance(slow, str) else slow)
        return [a / b for a, b in zip(baseline, self.milliseconds[fast], strict=True)]


def interleaved(
    arms: Mapping[str, Action], *, rounds: int = 7, repeats: int = 3, warm_up: int = 2, device: str = "cpu", minimum_ms: float = 0.0
) -> Rounds:
    """Time every arm in turn, round after round; the order turns, so that what else the machine does hits all alike.

    Args:
        arms: what to call, by name.
        rounds: how often every arm has its turn, each giving one time per arm.
        repeats: calls in a turn, of which the median counts.
        warm_up: calls of each arm that are not timed (compilation, caches).
        device: `cpu` or a CUDA device.
        minimum_ms: calls are grouped until a timed stretch lasts at least this long, for arms near the clock's resolution.

    Raises:
        ValueError: if there are no arms, or rounds or repeats are less than 1.

    Example:
        >>> times = interleaved({"short": lambda: sum(range(10)), "long": lambda: sum(range(100_000))}, rounds=3)
        >>> times.median("long") > times.median("short")
        True
    """
    if not arms or rounds < 1 or repeats < 1:
        raise ValueError(f"need at least one arm, round and repeat, got {len(arms)} arms, {rounds} rounds, {repeats} repeats")
    clock, wait, name = clock_of(device)
    calls = {}
    for arm, action in arms.items():
        for _ in range(warm_up):
            action()
        calls[arm] = _calls(action, minimum_ms, clock, wait)
    found: dict[str, list[float]] = {arm: [] for arm in arms}
    names = list(arms)
    for number in range(rounds):
        turn = number % len(names)
        for arm in names[turn:] + names[:turn]:
            times = [_stretch(arms[arm], calls[arm], clock, wait) for _ in range(repeats)]
            found[arm].append(statistics.median(times))
    return Rounds(found, _threads(), name)


def clock_of(device: str) -> tuple[Callable[[], float], Callable[[], None], str]:
    """(clock in seconds, function that waits for the device, name of the clock)."""
    if device.startswith("cuda"):
        import torch

        return time.perf_counter, torch.cuda.synchronize, "wall"
    return time.process_time, lambda: None, "process"


def _calls(action: Action, minimum_ms: float, clock: Callable[[], float], wait: Callable[[], None]) -> int:
    once = _stretch(action, 1, clock, wait)
    return max(1, min(1000, round(minimum_ms / max(once, 1e-3))))


def _stretch(action: Action, calls: int, clock: Callable[[], float], wait: Callable[[], None]) -> float:
    wait()
    before = clock()
    for _ in range(calls):
        action()
    wait()
    return 1000 * (clock() - before) / calls


def _threads() -> int:
    import sys

    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch else 1
