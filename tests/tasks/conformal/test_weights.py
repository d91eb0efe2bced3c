from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.conformal.weights import likelihood_ratio_weights, shift_to_rate


@given(st.lists(st.floats(0, 0.98), min_size=1, max_size=30))
def test_weights_times_clean_probability_are_constant(probabilities):
    p = np.array(probabilities)
    np.testing.assert_allclose(likelihood_ratio_weights(p) * (1 - p), 1 - p.mean())


def test_weights_of_other_rows_are_on_the_same_scale():
    p = np.array([0.1, 0.5, 0.8])
    np.testing.assert_array_equal(likelihood_ratio_weights(p, of=p[[2, 0]]), likelihood_ratio_weights(p)[[2, 0]])


def test_constant_probabilities_give_weight_one():
    np.testing.assert_allclose(likelihood_ratio_weights(np.full(5, 0.3)), 1.0)


def test_shift_reaches_the_observed_rate_unless_it_clips():
    rng = np.random.default_rng(0)
    p, masked = rng.uniform(0.3, 0.6, 200), rng.random(200) < 0.25
    np.testing.assert_allclose(shift_to_rate(p, masked).mean(), masked.mean())
    clipped = shift_to_rate(np.array([0.0, 1.0]), np.array([True, True]))
    np.testing.assert_array_equal(clipped, [0.5, 0.99])


@pytest.mark.parametrize("bad", [[-0.1], [1.0], [np.nan]])
def test_impossible_probabilities_are_refused(bad):
    with pytest.raises(ValueError, match="probabilities"):
        likelihood_ratio_weights(bad)


@pytest.mark.parametrize("bad", [[-0.1, 0.5], [0.5, 1.1], [0.5, np.inf]])
def test_impossible_estimates_are_refused(bad):
    with pytest.raises(ValueError, match=r"probabilities must lie in \[0, 1\]"):
        shift_to_rate(bad, np.array([True, False]))
    with pytest.raises(ValueError, match="of must lie in"):
        shift_to_rate([0.1, 0.2], np.array([True, False]), of=bad)


def test_shift_refuses_masks_of_another_kind_or_length():
    with pytest.raises(ValueError, match="masked must be boolean"):
        shift_to_rate([0.1], np.array([1.0]))
    with pytest.raises(ValueError, match="probabilities 1, masked 2"):
        shift_to_rate([0.1], np.array([True, False]))
