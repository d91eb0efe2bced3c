from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.common.formats import read_json, read_parquet, write_atomically, write_json, write_parquet

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**50), 2**50) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(JSON)
def test_json_round_trip(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("json") / "value.json"
    write_json(path, value)
    assert read_json(path) == value


def test_json_is_canonical_and_has_no_word_for_nan(tmp_path):
    write_json(tmp_path / "a.json", {"b": 1, "a": np.float64("nan"), 3: [math.inf, np.int32(2)], "t": (1, 2)})
    write_json(tmp_path / "b.json", {"t": [1, 2], 3: [-math.inf, 2], "a": None, "b": np.int64(1)})
    text = (tmp_path / "a.json").read_text()
    assert text == (tmp_path / "b.json").read_text()
    assert json.loads(text) == {"3": [None, 2], "a": None, "b": 1, "t": [1, 2]}
    assert text.endswith("}\n")


def test_broken_json_is_named(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match=r"bad.json is not JSON .*run its stage again"):
        read_json(tmp_path / "bad.json")


def test_parquet_round_trip_is_exact_and_byte_stable(tmp_path):
    frame = pd.DataFrame({"x": np.random.default_rng(0).random(100), "name": ["a", "b"] * 50, "flag": [True, False] * 50})
    write_parquet(tmp_path / "a.parquet", frame)
    write_parquet(tmp_path / "b.parquet", frame.copy())
    pd.testing.assert_frame_equal(read_parquet(tmp_path / "a.parquet"), frame)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert list(read_parquet(tmp_path / "a.parquet", ["name"]).columns) == ["name"]


def test_nobody_sees_half_a_file(tmp_path):
    path = tmp_path / "new" / "file.txt"
    write_atomically(path, lambda p: p.write_text("whole"))

    def break_off(temporary):
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, break_off)
    assert path.read_text() == "whole"
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]
