"""Independent repetitions in a pool of processes, each with one BLAS/OpenMP thread, so that results do not depend on the pool's size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import Any, TypeVar

A = TypeVar("A")
R = TypeVar("R")


def workers_allowed() -> int:
    """How many processes a stage may use: `PAPERS_THREADS`, else the CPUs of this process."""
    asked = os.environ.get("PAPERS_THREADS", "")
    if asked and not (asked.isdigit() and int(asked) >= 1):
        raise ValueError(f"PAPERS_THREADS must be a positive whole number, got {asked!r}")
    return int(asked) if asked else len(os.sched_getaffinity(0))


def map_parallel(work: Callable[[A], R], items: Iterable[A], *, workers: int | None = None) -> Iterator[R]:
    """Yield `work(item)` in the order of `items`.

    Args:
        work: a module-level function (it is sent to other processes); all randomness comes from `item`.
        items: the work, for example seeds.
        workers: processes; default `workers_allowed()`. With 1, everything happens in this process, with the same results;
            numerical libraries that `work` is the first to import keep one thread here from then on.

    Raises:
        whatever `work` raises, for the first item that fails.
    """
    todo = list(items)
    count = min(workers or workers_allowed(), max(len(todo), 1))
    if count == 1:
        for item in todo:
            yield _single_threaded(work, item)
        return
    with ProcessPoolExecutor(count, mp_context=get_context("forkserver"), initializer=_start_worker, initargs=(dict(os.environ),)) as pool:
        futures = [pool.submit(_single_threaded, work, item) for item in todo]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


# What libraries ask when they are loaded; `threadpool_limits` reaches only those that are loaded already.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def _start_worker(environment: dict[str, str]) -> None:
    """The caller's variables as they are now, one thread for numbers, and one that ends this process with the one that made it.

    The server that workers are forked from has kept the variables of the time when it started. A killed stage leaves no idle worker.
    """
    os.environ.update(environment)
    _start_with_one_thread()
    parent = parent_process()
    if parent is not None:
        Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def _start_with_one_thread() -> None:
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))


def _single_threaded(work: Callable[[Any], R], item: Any) -> R:
    import sys

    from threadpoolctl import threadpool_limits

    kept = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    _start_with_one_thread()
    try:
        with threadpool_limits(1):
            if torch:
                torch.set_num_threads(1)
            return work(item)
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        if torch:
            torch.set_num_threads(before)
