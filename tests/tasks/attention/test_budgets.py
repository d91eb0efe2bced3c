from __future__ import annotations

import pytest
import torch
from scipy import stats

from tasks.attention.budgets import combined_budget, finite_population, normal_quantile, sdpa_shares, sum_budget, whole_budget


@pytest.mark.parametrize("delta", [0.01, 0.05, 0.1, 0.25, 0.5])
def test_quantiles_are_those_of_scipy(delta):
    assert normal_quantile(delta) == pytest.approx(stats.norm.ppf(1 - delta / 2))
    assert normal_quantile(delta, "one_sided") == pytest.approx(stats.norm.ppf(1 - delta))


def test_one_sided_quantiles_never_turn_negative():
    assert normal_quantile(0.9, "one_sided") == 0.0


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1])
def test_impossible_probabilities_are_refused(delta):
    with pytest.raises(ValueError, match=r"delta must lie in \(0, 1\)"):
        normal_quantile(delta)


def test_a_budget_by_hand():
    # (2 * 100 * 0.5 / (0.1 * 50))^2 = 20^2
    assert sum_budget(torch.tensor(100), torch.tensor(0.5), torch.tensor(50.0), 0.1, 2.0).item() == pytest.approx(400.0)


def test_equal_terms_need_no_draw_and_a_zero_sum_needs_all():
    none = sum_budget(torch.tensor([10, 10, 10]), torch.tensor([0.0, 1.0, 0.0]), torch.tensor([3.0, 0.0, 0.0]), 0.1, 2.0)
    assert none.tolist() == [0.0, torch.inf, torch.inf]
    assert whole_budget(none, torch.tensor([2, 2, 2]), torch.tensor([10, 10, 10])).tolist() == [2, 10, 10]
    assert whole_budget(torch.tensor([torch.nan]), torch.tensor([2]), torch.tensor([10])).tolist() == [10]


def test_budgets_are_rounded_up_and_bounded():
    wanted = torch.tensor([0.0, 3.2, 1e9])
    assert whole_budget(wanted, torch.tensor([2, 2, 2]), torch.tensor([10, 10, 10])).tolist() == [2, 4, 10]
    assert whole_budget(wanted, torch.tensor([1, 1, 1]), torch.tensor([1, 1, 1])).tolist() == [1, 1, 1]


def test_stricter_bounds_cost_more():
    n_s, std, total = torch.tensor(1000), torch.tensor(1.0), torch.tensor(1500.0)
    by_epsilon = [sum_budget(n_s, std, total, epsilon, 2.0).item() for epsilon in (0.5, 0.2, 0.1)]
    by_delta = [sum_budget(n_s, std, total, 0.2, normal_quantile(delta)).item() for delta in (0.5, 0.2, 0.05)]
    assert by_epsilon == sorted(by_epsilon)
    assert by_delta == sorted(by_delta)


def test_without_replacement_the_budget_never_exceeds_the_residual():
    n_s = torch.tensor([100, 100, 100])
    assert finite_population(torch.tensor([100.0, 1e9, torch.inf]), n_s).tolist() == pytest.approx([50.0, 100.0, 100.0], rel=1e-4)


def test_the_output_bound_splits_epsilon_and_delta():
    epsilon, delta = sdpa_shares(0.2, 0.1)
    assert 2 * (epsilon + epsilon) == pytest.approx(0.2)
    assert delta + delta == pytest.approx(0.1)
    assert combined_budget(torch.tensor([1.0, 5.0]), torch.tensor([2.0, 3.0])).tolist() == [2.0, 5.0]
