from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from tasks.conformal.synthetic import SHIFTS, hard_weights, shifted_coverage, shifted_scores, three_ways, three_ways_law


def test_hard_weights_are_invisible_to_anything_linear():
    s = hard_weights(40_000, np.random.default_rng(0))
    assert abs(np.corrcoef(s.z, s.masked)[0, 1]) < 0.02
    assert s.masked.mean() == pytest.approx(0.05 + 0.75 * 2 * norm.cdf(-1), abs=0.01)
    assert s.masked[np.abs(s.z) > 1].mean() == pytest.approx(0.8, abs=0.02)
    design = np.column_stack([s.x[:, :3], s.z, np.ones(len(s.y))])
    coefficients, residual, *_ = np.linalg.lstsq(design, s.y, rcond=None)
    np.testing.assert_allclose(coefficients, [1, -1, 0.5, 2, 0], atol=0.03)
    assert residual[0] / len(s.y) == pytest.approx(1.0, abs=0.03)


def test_three_ways_has_the_law_it_says_and_labels_that_ignore_corruption_given_x():
    s = three_ways(40_000, np.random.default_rng(0))
    mean, sd = three_ways_law(s.x)
    noise = (s.y - mean) / sd
    assert noise.std() == pytest.approx(1.0, abs=0.02)
    assert abs(np.corrcoef(noise**2, s.masked)[0, 1]) < 0.02
    assert s.masked[s.z > 0.5].mean() == pytest.approx(0.8, abs=0.02)
    assert s.masked[s.z <= 0.5].mean() == pytest.approx(0.05, abs=0.01)


def test_three_ways_and_shifted_scores_have_the_designed_numbers():
    s = three_ways(100_000, np.random.default_rng(0))
    noise = s.y - s.x[:, 1] - 0.5 * s.x[:, 0]
    assert (s.z - s.x[:, 0]).std() == pytest.approx(0.2, abs=0.005)
    assert noise[s.x[:, 0] > 0.5].std() == pytest.approx(3.0, abs=0.05)
    assert noise[s.x[:, 0] <= 0.5].std() == pytest.approx(0.5, abs=0.01)
    # P(|3 N| <= 3) = 0.6827 for 40 % of the rows and P(|N| <= 3) = 0.9973 for the others; the mean square is 0.4 * 9 + 0.6.
    assert float(shifted_coverage(3.0)) == pytest.approx(0.4 * 0.6827 + 0.6 * 0.9973, abs=1e-4)
    assert (shifted_scores(200_000, "under", np.random.default_rng(0)).scores ** 2).mean() == pytest.approx(4.2, abs=0.06)
    assert SHIFTS == {"under": (0.6, 0.1), "over": (0.1, 0.6), "none": (0.3, 0.3)}


@pytest.mark.parametrize("case", list(SHIFTS))
def test_exact_coverage_is_what_simulation_says(case):
    s = shifted_scores(100_000, case, np.random.default_rng(1))
    for q in (0.5, 2.0, 4.0):
        assert float(shifted_coverage(q)) == pytest.approx((s.scores <= q).mean(), abs=0.006)
    assert s.weights[~s.masked].mean() == pytest.approx(1.0, abs=0.02)
    clean_rate = 1 - s.masked.mean()
    np.testing.assert_allclose(np.unique((1 - s.masked.mean()) / s.weights), np.unique(1 - np.array(SHIFTS[case])), rtol=0.02)
    assert 0.3 < clean_rate < 0.9


def test_unknown_case_names_the_known_ones():
    with pytest.raises(KeyError, match="unknown case 'side'; known: under, over, none"):
        shifted_scores(10, "side", np.random.default_rng(0))
