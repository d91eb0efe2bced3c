from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tasks.routing.scores import arms_of, common_gaps, infeasibility_differences, length_ratios, proofs, rises, scores


def table(run, rows, set_="medium", budget=10, part="test"):
    """Rows of (seed, image, instance, status, backtracks, length, cost)."""
    frame = pd.DataFrame(rows, columns=["seed", "image", "instance", "status", "backtracks", "length", "cost"])
    return frame.assign(run=run, set=set_, budget=budget, part=part, calls=5)


LMASK = table(
    "lmask",
    [
        (0, 0, 0, 1, 0, 2.0, 1.0),
        (0, 1, 0, 1, 3, 1.5, 1.0),
        (0, 0, 1, -1, 10, np.inf, 1.0),
        (0, 1, 1, 1, 7, 1.1, 1.0),
        (1, 0, 0, 1, 0, 1.2, 1.0),
        (1, 1, 0, 1, 0, 1.4, 1.0),
        (1, 0, 1, 1, 6, 1.3, 1.0),
        (1, 1, 1, 1, 5, 1.2, 1.0),
    ],
)
PIP = table("pip", [(s, i, n, 1, 0 if n == 0 else 4, 1.6 + 0.1 * s, 1.0) for s in range(2) for i in range(2) for n in range(2)])
NEAREST = table("nearest", [(0, 0, 0, 1, 0, 1.3, 1.0), (0, 0, 1, 1, 9, 1.9, 1.0)])
RANDOM = table("random", [(s, 0, n, 1, 0, 2.0 + s, 1.0) for s in range(2) for n in range(2)])


def test_infeasible_shares_and_gaps_by_hand():
    metrics = scores(LMASK, "medium", [0, 5, 10], 10)
    # Seed 0: 3 of 4 solved with 10 backtracks, 2 with 5, 1 with 0; seed 1: all, 3 and 2.
    assert [metrics[f"lmask_r{r}.sol_infeas.medium"] for r in (10, 5, 0)] == pytest.approx([0.125, 0.375, 0.625])
    # An instance counts if one of its images is solved: with 0 backtracks only instance 0, in both seeds.
    assert metrics["lmask_r0.ins_infeas.medium"] == 0.5
    assert metrics["lmask_r10.ins_infeas.medium"] == 0
    # Best images: 0.5 and 0.1 for seed 0, 0.2 and 0.2 for seed 1.
    assert metrics["lmask_r10.gap.medium"] == pytest.approx((0.3 + 0.2) / 2)
    # First images: 1.0 alone for seed 0; 0.2 and 0.3 for seed 1.
    assert metrics["lmask_r10.gap_single.medium"] == pytest.approx((1.0 + 0.25) / 2)
    assert metrics["lmask_r10.backtracks.medium"] == pytest.approx((20 / 4 + 11 / 4) / 2)
    assert metrics["lmask_r10.backtracks_max.medium"] == 10
    assert metrics["lmask_r10.sol_infeas.medium.n"] == 2


def test_rules_without_seeds_have_intervals_over_instances_and_names_of_the_benchmark():
    metrics = scores(NEAREST, "medium", [0, 10], 10)
    assert metrics["greedy_l.sol_infeas.medium"] == 0.5
    assert metrics["greedy_l.sol_infeas.medium.n"] == 2
    assert (metrics["greedy_l.sol_infeas.medium.lo"], metrics["greedy_l.sol_infeas.medium.hi"]) == (0, 1)
    assert metrics["nearest_r10.gap.medium"] == pytest.approx(0.6)
    assert "ins_infeas" not in " ".join(metrics)


def test_gaps_are_compared_on_what_both_solved():
    metrics = common_gaps(pd.concat([LMASK, PIP, NEAREST, RANDOM]), "medium", 10)
    # PIP solves instance 0 only: gap 0.6 and 0.7; LMask's best there 0.5 and 0.2; random 1.0 and 2.0.
    assert metrics["pip.gap_common.medium"] == pytest.approx(0.65)
    assert metrics["lmask_r10.gap_common.medium"] == pytest.approx(0.35)
    assert metrics["lmask_r10.gap_common.medium-pip.gap_common.medium"] == pytest.approx(-0.3)
    assert metrics["random_r10.gap_common.medium-pip.gap_common.medium"] == pytest.approx(1.5 - 0.65)
    # Nearest solves both: 0.3 and 0.9.
    assert metrics["lmask_r10.gap_nearest.medium-nearest_r10.gap_nearest.medium"] == pytest.approx((0.3 + 0.2) / 2 - 0.6)
    # First images: seed 0 solves instance 0 only (1.0 against 0.3), seed 1 both (0.25 against 0.6).
    assert metrics["lmask_r10.gap_nearest_single.medium-nearest_r10.gap_nearest_single.medium"] == pytest.approx((0.7 - 0.35) / 2)
    assert "gap_rie" not in " ".join(metrics)


def test_what_a_third_arm_leaves_unsolved_does_not_count():
    metrics = common_gaps(pd.concat([LMASK, PIP.assign(backtracks=0), RANDOM[RANDOM["instance"] == 1]]), "medium", 10)
    # LMask's best: 0.5 and 0.1, then 0.2 and 0.2; PIP 0.6, then 0.7, everywhere; random, on instance 1 alone, 1 and 2.
    assert metrics["lmask_r10.gap_common.medium"] == pytest.approx((0.3 + 0.2) / 2)
    assert metrics["lmask_r10.gap_common.medium-pip.gap_common.medium"] == pytest.approx(0.25 - 0.65)
    assert metrics["random_r10.gap_common.medium-pip.gap_common.medium"] == pytest.approx(1.5 - 0.65)


def test_arms_without_anything_in_common_are_not_compared():
    assert common_gaps(pd.concat([LMASK, PIP.assign(backtracks=9)]), "medium", 10) == {}


def test_differences_of_infeasibility_are_paired_over_seeds():
    metrics = infeasibility_differences(pd.concat([LMASK, PIP.assign(run="norie"), RANDOM]), "medium", 10)
    assert metrics["lmask_r10.sol_infeas.medium-norie_r10.sol_infeas.medium"] == pytest.approx((0.25 + 0) / 2)
    assert metrics["lmask_r10.sol_infeas.medium-random_r10.sol_infeas.medium.n"] == 2


def test_lengths_are_compared_with_greedy_c_instance_by_instance():
    greedy = table("deadline", [(0, 0, 0, 1, 0, 2.0, 1.0), (0, 0, 1, 1, 3, 9.0, 1.0)])
    metrics = length_ratios(pd.concat([LMASK, greedy]), "medium", 10)
    # Greedy-C solves instance 0 alone: (2 + 1.5) / 2 and (1.2 + 1.4) / 2 over 2.
    assert metrics["lmask_r10.length_ratio.medium"] == pytest.approx((1.75 + 1.3) / 2 / 2)


def test_rises_are_found_and_falls_are_not():
    def share(seed, budget, unsolved):
        return table("lmask_live", [(seed, 0, n, -1 if n < unsolved else 1, 0, 1.0, 1.0) for n in range(10)], budget=budget)

    falling = pd.concat([share(s, b, u) for s in range(3) for b, u in ((0, 8), (10, 5), (25, 4))])
    metrics = rises(falling, "medium", (0, 10, 25))
    assert metrics["lmask_live.largest_rise.medium"] == pytest.approx(-0.1)
    assert metrics["lmask_live.left_at_r25.medium"] == pytest.approx(0.5)
    rising = pd.concat([share(s, b, u) for s, top in enumerate((5, 6, 9)) for b, u in ((0, 8), (10, 5), (25, top))])
    metrics = rises(rising, "medium", (0, 10, 25))
    assert metrics["lmask_live.largest_rise.medium"] == pytest.approx(0.4)
    mean, error = 0.5 / 3, np.std([0, 0.1, 0.4], ddof=1) / 3**0.5
    assert metrics["lmask_live.rise_beyond_2se.medium"] == pytest.approx(mean - 2 * error)
    assert rises(LMASK, "medium", (0, 10)) == {}


def test_proofs_and_wrong_proofs_are_counted():
    hopeless = [
        table("lmask", [(0, 0, 0, 0, 1, np.inf, np.inf), (0, 0, 1, -1, b, np.inf, np.inf)], budget=b, part="infeasible") for b in (10, 90)
    ]
    wrong = LMASK.assign(status=0)
    metrics = proofs(pd.concat([wrong, *hopeless]), "medium")
    assert metrics["lmask.false_proofs.medium"] == 8
    assert metrics["lmask_r10.proved_infeasible.medium"] == 0.5
    assert metrics["lmask_exhaustive.proved_infeasible.medium"] == 0.5
    assert metrics["lmask_r10.false_tours.medium"] == 0


def test_smaller_budgets_are_read_off_the_largest_run():
    found = arms_of(pd.concat([LMASK, PIP]), (0, 10))
    assert set(found) == {"lmask_r0", "lmask_r10", "nobt_r0", "nobt_r10", "pip"}
    assert found["lmask_r0"]["backtracks"].max() == 0
