import itertools
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.rl.pass_at_k import pass_at_k


@given(st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_it_equals_the_ratio_of_binomial_coefficients(case):
    n, c, k = case
    assert pass_at_k(np.array(c), n, k) == pytest.approx(1 - comb(n - c, k) / comb(n, k))


def test_it_is_the_share_of_subsets_that_hold_a_success():
    outcomes = [True, False, False, True, False]
    for k in range(1, 6):
        share = np.mean([any(s) for s in itertools.combinations(outcomes, k)])
        assert pass_at_k(np.array(2), 5, k) == pytest.approx(share)


def test_it_is_the_success_rate_at_one_and_grows_with_k():
    solved = np.array([0, 3, 50, 100])
    np.testing.assert_allclose(pass_at_k(solved, 100, 1), solved / 100)
    curve = np.array([pass_at_k(solved, 100, k) for k in range(1, 101)])
    assert (np.diff(curve, axis=0) >= -1e-12).all()


@pytest.mark.parametrize(
    ("c", "n", "k", "message"), [(1, 4, 5, r"1..4 \(attempts\), got 5"), (1, 4, 0, "got 0"), (5, 4, 2, "successes must")]
)
def test_impossible_counts_are_refused(c, n, k, message):
    with pytest.raises(ValueError, match=message):
        pass_at_k(np.array([c]), n, k)
