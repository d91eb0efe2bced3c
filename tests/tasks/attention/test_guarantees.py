from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from attention_cases import generator

from tasks.attention.cells import Case
from tasks.attention.guarantees import Bench, cells, named
from tasks.attention.guarantees_report import correlation, rank_correlation
from tasks.attention.recording import Recorded
from tasks.attention.vattention import VAttentionConfig


@pytest.fixture(scope="module")
def bench():
    """Peaked keys with values that depend on them, and long enough for budgets between the base sample and everything."""
    g = generator(0)
    found = []
    for layer in range(2):
        key = torch.randn(1, 2, 3000, 16, generator=g)
        query = torch.randn(1, 4, 6, 16, generator=g) * 1.5
        value = key[..., :8] + 0.3 * torch.randn(1, 2, 3000, 8, generator=g) + 0.5
        found.append(Case.of(Recorded(layer, query, key, value)))
    bench = Bench(found, 0, "short", VAttentionConfig(sink=8, window=8))
    bench.bounds()
    bench.sweeps()
    bench.modes()
    bench.ablations()
    bench.adaptivity()
    return bench


def value(bench, arm, cell, quantity):
    (row,) = [r for r in bench.rows if r["arm"] == arm and r["cell"] == cell]
    return row[quantity]


def test_violations_stay_below_delta(bench):
    for cell in cells():
        assert value(bench, "vattention", cell, "viol_d") <= int(cell[-2:]) / 100 + 0.1
        assert value(bench, "topk_only", cell, "viol_d") >= value(bench, "vattention", cell, "viol_d")


def test_a_larger_epsilon_reads_less_and_misses_more(bench):
    names = [f"{named('e', epsilon)}_short" for epsilon in (0.05, 0.1, 0.2, 0.3, 0.5)]
    density = [value(bench, "sweep", name, "density") for name in names]
    error = [value(bench, "sweep", name, "err_mean") for name in names]
    assert density == sorted(density, reverse=True)
    assert error[0] < error[-1]
    assert len({value(bench, "unadaptive", name, "err_mean") for name in names}) == 1


def test_bounding_the_output_costs_most(bench):
    for cell in ("e10_short", "e20_short", "e40_short"):
        density = [value(bench, mode, cell, "density") for mode in ("denominator", "sdpa")]
        assert density[0] < density[1]
        assert value(bench, "sdpa", cell, "viol_sdpa") <= 0.1


def test_single_changes_do_what_they_say(bench):
    density = {name: value(bench, name, "short", "density") for name in ("plain", "base_5", "base_10", "one_sided", "fpc")}
    assert density["plain"] < density["base_5"] < density["base_10"]
    assert density["one_sided"] <= density["plain"]
    assert density["fpc"] <= density["plain"]
    assert value(bench, "noise_200", "short", "density") > density["plain"]  # what noise leaves in the residual is spread more widely


def test_budgets_follow_the_spread_of_the_residual(bench):
    (row,) = [r for r in bench.rows if r["arm"] == "budget"]
    assert row["spearman_spread"] > 0.5
    assert -1 <= row["spearman_entropy"] <= 1


def test_long_prompts_go_without_ablations(pipeline):
    frame = pd.read_parquet(pipeline[0] / "evaluate-guarantees/cells.parquet")
    assert set(frame[frame["data"] == "long"]["group"]) == {"epsilon", "delta", "mode"}
    assert set(frame[frame["data"] == "short"]["group"]) == {"epsilon", "delta", "mode", "bound", "ablation", "budget", "method"}


def test_points_for_the_scatter_plot(pipeline):
    scatter = pd.read_parquet(pipeline[0] / "evaluate-guarantees/rows.parquet")
    assert list(scatter.columns) == ["entropy_nats", "vattention", "oracle_topk", "random"]
    assert (scatter >= -1e-6).all().all()


def test_ties_do_not_count_against_the_order():
    asked = np.array([0.05, 0.1, 0.2, 0.3, 0.5])
    assert rank_correlation(asked, np.array([1.0, 2.0, 3.0, 3.0, 3.0])) == pytest.approx(1.0)
    assert rank_correlation(asked, np.array([5.0, 4.0, 3.0, 2.0, 1.0])) == pytest.approx(-1.0)
    assert rank_correlation(asked, np.ones(5)) == 0.0
    assert correlation(asked, np.ones(5)) == 0.0
    assert correlation(asked, 2 * asked + 1) == pytest.approx(1.0)


def test_names_are_in_hundredths():
    assert [named("e", x) for x in (0.05, 0.1, 0.5)] == ["e05", "e10", "e50"]
    assert named("noise_", 2.0) == "noise_200"
    assert len(list(cells())) == 9
