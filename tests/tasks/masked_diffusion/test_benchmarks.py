from __future__ import annotations

import sys

import pandas as pd
import pytest
import tiny_benchmarks

from tasks.common.assets import AssetMissing
from tasks.common.node import Inputs, NullLog
from tasks.masked_diffusion.benchmarks import (
    BenchmarkParams,
    code_of,
    final_number,
    is_right,
    prepare,
    problems_of,
    read_problems,
    rows_of,
)


def one(benchmark):
    return problems_of(benchmark, tiny_benchmarks.ROWS[benchmark], 1)[0]


@pytest.mark.parametrize(
    ("text", "number"),
    [("a #### 1,234 b 7", 1234.0), ("3 and then 4", 4.0), ("#### none, so 5", 5.0), ("-2.5", -2.5), ("nothing", None), ("#### ", None)],
)
def test_final_number(text, number):
    assert final_number(text) == number


def test_gsm8k_is_judged_by_the_last_number():
    problem = one("gsm8k")
    assert problem.reference == "2.0"
    assert is_right(problem, "0 + 2 = 2 #### 2")
    assert not is_right(problem, "#### 3")
    assert not is_right(problem, "I do not know")


def test_code_is_judged_by_running_it_and_only_when_asked():
    problem = one("humaneval")
    good = "```python\ndef root(x):\n    return math.sqrt(x)\n```"
    assert is_right(problem, good) is None
    assert is_right(problem, good, run=True)  # `math` is imported by the prompt
    assert is_right(problem, "    return x / 2", run=True)  # the body alone
    assert is_right(problem, "```python\ndef root(x):\n    return x\n```", run=True) is False
    assert is_right(one("mbpp"), "```\ndef double(x):\n    return 2 * x\n```", run=True)
    assert is_right(one("mbpp"), "def double(x):\n    return x", run=True) is False


def test_code_blocks():
    assert code_of("x = 1") == "x = 1"
    assert code_of("```py\nx = 1\n") == "x = 1"  # cut off before the fence
    assert code_of("a\n```\nfirst\n```\n```\nsecond\n```") == "first"


def test_files_of_both_kinds_give_the_same_problems(tmp_path):
    files = tiny_benchmarks.write(tmp_path)
    for name, path in files.items():
        table = tmp_path / f"{name}.parquet"
        pd.DataFrame(tiny_benchmarks.ROWS[name]).to_parquet(table)
        assert problems_of(name, rows_of(name, path)) == problems_of(name, rows_of(name, table))


def test_prepare_keeps_problems_for_tuning(tmp_path):
    files = tiny_benchmarks.write(tmp_path)
    params = BenchmarkParams(benchmarks={"gsm8k": 3, "humaneval": None, "mbpp": 1}, files=files, calibration=2)
    metrics = prepare(params, Inputs(), tmp_path, NullLog())
    assert metrics == {
        "problems.test.gsm8k": 3.0,
        "problems.calibration.gsm8k": 2.0,
        "problems.test.humaneval": 2.0,
        "problems.test.mbpp": 1.0,
    }
    tuning, test = read_problems(tmp_path, "calibration"), read_problems(tmp_path, "test")
    assert [p.name for p in tuning] == ["6", "7"]
    assert not {p.prompt for p in tuning} & {p.prompt for p in test}


def test_what_cannot_be_read_is_refused(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"give a JSON Lines or Parquet file of mbpp"):
        list(rows_of("mbpp", tmp_path / "none.jsonl"))
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match=r"must end in \.jsonl or \.parquet"):
        list(rows_of("mbpp", tmp_path / "a.txt"))
    with pytest.raises(ValueError, match="row 0 of gsm8k has no column 'question'; it has prompt"):
        problems_of("gsm8k", [{"prompt": 1}])
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(AssetMissing, match="pip install datasets"):
        list(rows_of("gsm8k", None))
