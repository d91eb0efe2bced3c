from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.tabular.encoding import encode, most_correlated, standardise


def test_every_kind_of_column_becomes_numbers():
    frame = pd.DataFrame(
        {
            "number": [1.5, np.nan, -2.0],
            "whole": [3, 4, 5],
            "flag": [True, False, True],
            "word": ["b", None, "a"],
            "level": pd.Categorical(["x", "y", "x"]),
        }
    )
    found = encode(frame)
    assert found.dtypes.unique().tolist() == [np.dtype(float)]
    assert found.to_dict("list") == {
        "number": [1.5, 0.0, -2.0],
        "whole": [3.0, 4.0, 5.0],
        "flag": [1.0, 0.0, 1.0],
        "word": [1.0, -1.0, 0.0],
        "level": [0.0, 1.0, 0.0],
    }


@given(st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=12), st.randoms())
def test_codes_do_not_depend_on_the_order_of_rows(words, random):
    order = list(range(len(words)))
    random.shuffle(order)
    straight = encode(pd.DataFrame({"w": words}))["w"].to_numpy()
    shuffled = encode(pd.DataFrame({"w": [words[i] for i in order]}))["w"].to_numpy()
    np.testing.assert_array_equal(shuffled, straight[order])


def test_most_correlated_is_numpys_corrcoef_by_hand():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((200, 5)), columns=list("abcde"))
    y = -3 * frame["d"].to_numpy() + rng.standard_normal(200)
    by_hand = max(frame.columns, key=lambda c: abs(np.corrcoef(frame[c], y)[0, 1]))
    assert most_correlated(frame, y) == by_hand == "d"


def test_a_target_without_spread_and_features_without_values_are_refused():
    with pytest.raises(ValueError, match=r"all 3 are equal to 2\.0"):
        standardise(np.full(3, 2.0))
    with pytest.raises(ValueError, match="need finite numbers, got 2, of which 1"):
        standardise(np.array([1.0, np.nan]))
    with pytest.raises(ValueError, match="need finite numbers, got 0"):
        standardise(np.array([]))
    with pytest.raises(ValueError, match="columns of one name: \\['a'\\]"):
        encode(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(ValueError, match="nothing correlates with 20 values"):
        most_correlated(pd.DataFrame({"a": np.arange(20.0)}), np.ones(20))
    with pytest.raises(ValueError, match="none of 1 has more than 10"):
        most_correlated(pd.DataFrame({"a": np.arange(10.0)}), np.arange(10.0))


def test_standardise_golden_case():
    # Mean 2, variance (4 + 0 + 4) / 3 = 8/3.
    np.testing.assert_allclose(standardise(np.array([0.0, 2.0, 4.0])), np.array([-2, 0, 2]) / np.sqrt(8 / 3))
