from __future__ import annotations

from pathlib import Path

import pytest

from tasks.masked_diffusion.sandbox import run_code


def test_right_and_wrong_code():
    assert run_code("x = 1").passed
    wrong = run_code("raise KeyError('a')")
    assert not wrong.passed
    assert wrong.said == "KeyError: 'a'"
    assert not run_code("import sys; sys.exit(3)").passed
    assert "SyntaxError" in run_code("def (").said


def test_endless_code_is_stopped():
    assert run_code("while True: pass", seconds=0.5).said == "stopped after 0.5 s"


def test_memory_is_limited():
    assert "MemoryError" in run_code("x = bytearray(1 << 30)", memory_mib=256).said


def test_large_files_are_refused():
    assert not run_code("open('f', 'wb').write(bytes(2 << 20))").passed


def test_it_runs_in_a_folder_of_its_own_that_goes():
    path = Path(run_code("import os; raise ValueError(os.getcwd())").said.removeprefix("ValueError: "))
    assert path.name.startswith("generated-")
    assert not path.exists()


def test_children_do_not_stay(tmp_path):
    late = f"import time; time.sleep(1); open({str(tmp_path / 'f')!r}, 'w')"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {late!r}])"
    assert run_code(code).passed
    import time

    time.sleep(1.3)
    assert not (tmp_path / "f").exists()


def test_limits_must_be_positive():
    with pytest.raises(ValueError, match="limits must be positive, got 0 s"):
        run_code("", seconds=0)
