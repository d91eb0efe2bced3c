from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from pool_work import draw, fail_on_two, late, most_threads, process

from tasks.common.parallel import map_parallel, workers_allowed


def test_results_do_not_depend_on_the_pool_and_keep_their_order():
    one, two = (list(map_parallel(draw, range(6), workers=w)) for w in (1, 2))
    assert one == two == [draw(s) for s in range(6)]
    assert list(map_parallel(late, [0, 1, 2], workers=2)) == [0, 1, 2]


def test_no_items_no_results():
    assert list(map_parallel(draw, [])) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_failure_is_raised_after_the_results_before_it(workers):
    found = []
    with pytest.raises(ArithmeticError, match="seed 2"):
        found.extend(map_parallel(fail_on_two, range(5), workers=workers))
    iterator = map_parallel(fail_on_two, range(5), workers=workers)
    assert [next(iterator), next(iterator)] == [0, 1]


def test_one_worker_stays_in_this_process_and_two_do_not():
    assert set(map_parallel(process, range(3), workers=1)) == {os.getpid()}
    assert os.getpid() not in set(map_parallel(process, range(3), workers=2))


def test_libraries_loaded_by_the_work_use_one_thread_in_a_pool():
    assert set(map_parallel(most_threads, range(2), workers=2)) == {1}


def test_libraries_loaded_by_the_work_use_one_thread_in_this_process_and_the_environment_is_restored():
    code = (
        "import os; from tasks.common.parallel import map_parallel; from pool_work import most_threads;"
        "print(*map_parallel(most_threads, [0], workers=1), os.environ.get('OMP_NUM_THREADS'), os.environ.get('MKL_NUM_THREADS'))"
    )
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")} | {"OMP_NUM_THREADS": "2"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[3]), str(Path(__file__).parent)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["1", "2", "None"]


def test_workers_end_with_the_process_that_made_them():
    code = "from tasks.common.parallel import map_parallel; from pool_work import linger; list(map_parallel(linger, [0, 1], workers=2))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), str(Path(__file__).parent)])}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(parent.stdout.readline())) for _ in range(2)]
        parent.kill()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive


def test_workers_see_the_variables_of_the_caller_although_their_server_started_before(monkeypatch):
    assert os.getpid() not in set(map_parallel(process, range(2), workers=2))  # the server runs from here on
    monkeypatch.setenv("A_LATE_VARIABLE", "seen")
    assert list(map_parallel(os.getenv, ["A_LATE_VARIABLE"] * 2, workers=2)) == ["seen", "seen"]


def test_workers_allowed(monkeypatch):
    monkeypatch.setenv("PAPERS_THREADS", "3")
    assert workers_allowed() == 3
    monkeypatch.delenv("PAPERS_THREADS")
    assert workers_allowed() == len(os.sched_getaffinity(0))
    for bad in ("0", "-1", "two"):
        monkeypatch.setenv("PAPERS_THREADS", bad)
        with pytest.raises(ValueError, match=f"PAPERS_THREADS must be a positive whole number, got '{bad}'"):
            workers_allowed()
