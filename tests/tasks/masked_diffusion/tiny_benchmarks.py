"""Rows in the benchmarks' own columns."""

from __future__ import annotations

import json
from pathlib import Path

GSM8K = [{"question": f"Ann has {n} pens and buys 2. How many has she?", "answer": f"{n} + 2 = {n + 2}\n#### {n + 2}"} for n in range(8)]
HUMANEVAL = [
    {
        "task_id": "HumanEval/0",
        "prompt": 'import math\n\ndef root(x):\n    """Square root."""\n',
        "entry_point": "root",
        "test": "def check(candidate):\n    assert candidate(4) == 2\n",
    }
] * 2
MBPP = [{"task_id": 11, "text": "Write a function that doubles.", "test_list": ["assert double(2) == 4"], "test_setup_code": ""}] * 2
ROWS = {"gsm8k": GSM8K, "humaneval": HUMANEVAL, "mbpp": MBPP}


def write(folder: Path) -> dict[str, Path]:
    files = {}
    for name, rows in ROWS.items():
        files[name] = folder / f"{name}.jsonl"
        files[name].write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return files
