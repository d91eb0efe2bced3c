from __future__ import annotations

import numpy as np
import pytest
from matplotlib import pyplot

from tasks.common.formats import read_parquet
from tasks.routing import figures
from tasks.routing.figures import infeasibility_by_budget, tours


@pytest.fixture(autouse=True)
def _closed():
    yield
    pyplot.close("all")


def test_curves_of_infeasibility_are_the_shares_of_the_table(smoke):
    rows = read_parquet(smoke[0] / "evaluate/decodes.parquet").query("part == 'test'")
    drawn = infeasibility_by_budget(rows, (0, 5, 200))
    line = next(line for line in drawn.axes[1].lines if line.get_label() == figures.LABELS["lmask"])
    mine = rows.query("set == 'hard' and run == 'lmask'")
    shares = [1 - ((mine["status"] == 1) & (mine["backtracks"] <= r)).groupby(mine["seed"]).mean().mean() for r in (0, 5, 200)]
    assert line.get_ydata() == pytest.approx(np.maximum(shares, 1e-4))
    assert drawn.axes[0].get_title() == "TSPTW medium"


def test_unsolved_instances_are_drawn_without_a_tour():
    places = np.random.default_rng(0).random((4, 2))
    drawn = tours([("a", places, np.array([0, 1, 2, 3]), np.array([0, 2, 1, 3])), ("b", places, np.empty(0, int), np.empty(0, int))])
    assert [len(ax.lines) for ax in drawn.axes] == [2, 0]


def test_the_trade_off_names_every_arm_that_it_draws(smoke):
    rows = read_parquet(smoke[0] / "evaluate/decodes.parquet").query("part == 'test'")
    drawn = figures.trade_off(rows, read_parquet(smoke[0] / "prepare-references/references.parquet"))
    named = {text.get_text() for text in drawn.legends[0].get_texts()}
    assert {figures.LABELS[run] for run in figures.LABELS if run in set(rows["run"])} <= named
