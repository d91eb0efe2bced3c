from collections import Counter

import numpy as np

from tasks.rl.visit_counts import VisitCounts


def test_it_counts_as_a_dictionary_would():
    rng, counts, slow = np.random.default_rng(0), VisitCounts(3), Counter()
    for _ in range(5):
        seen, action = rng.integers(0, 6, 40), rng.integers(0, 3, 40)
        bonus = counts.visit(seen, action)
        slow.update(zip(seen.tolist(), action.tolist(), strict=True))
        expected = [min(1.0, slow[s, a] ** -0.5) for s, a in zip(seen.tolist(), action.tolist(), strict=True)]
        np.testing.assert_allclose(bonus, expected)


def test_observations_may_be_arrays():
    counts = VisitCounts(2)
    seen = np.array([[0, 1], [1, 0], [0, 1]])
    np.testing.assert_allclose(counts.visit(seen, np.zeros(3, int)), [2**-0.5, 1.0, 2**-0.5])
