from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from tasks.single_cell import figures
from tasks.single_cell.scoring import table_of


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def test_bars_are_the_means_of_the_arms_that_were_measured():
    parts = [table_of({"pca": {"silhouette": 0.1 + s}, "dice": {"silhouette": 0.4}}, t, s) for t in ("setup1", "setup2") for s in (0, 1)]
    plot = figures.by_setup(pd.concat(parts), "silhouette")
    heights = sorted(round(bar.get_height(), 3) for bar in plot.axes[0].patches)
    assert heights == [0.4, 0.4, 0.6, 0.6]
    labels = [text.get_text() for text in plot.axes[0].get_legend().get_texts()]
    assert labels == ["PCA", "DICE, chosen ρ"]


def test_errors_are_relative_to_pca_of_the_same_seed():
    parts = [table_of({"pca": {"rmse": 2.0 + 2 * s}, "dice": {"rmse": 1.0 + s}}, "setup1", s) for s in (1, 0)]
    heights = [bar.get_height() for bar in figures.by_setup(pd.concat(parts), "rmse").axes[0].patches]
    assert heights == [1.0, 0.5]


def test_a_sweep_has_a_line_for_each_target_through_the_means():
    scores = {"rho_0p3": {"silhouette": 0.2}, "rho_2p0": {"silhouette": 0.3}, "pca": {"silhouette": 0.1}}
    plot = figures.rho_sweep(table_of(scores, "setup1", 0), ["setup1"])
    line = plot.axes[0].lines[0]
    assert line.get_xdata().tolist() == [0.3, 2.0]
    assert line.get_ydata().tolist() == [0.2, 0.3]
    assert plot.axes[0].lines[1].get_ydata()[0] == 0.1


def test_depths_are_ordered():
    table = pd.concat([table_of({"pca": {"ari": p / 100}}, f"pbmc_p{p}", 0) for p in (100, 15, 50)])
    plot = figures.depth_sweep(table)
    assert plot.axes[1].lines[0].get_xdata().tolist() == [15, 50, 100]
    np.testing.assert_allclose(plot.axes[1].lines[0].get_ydata(), [0.15, 0.5, 1.0])


def test_maps_place_every_cell():
    rng = np.random.default_rng(0)
    cells = pd.concat(
        [
            pd.DataFrame(rng.standard_normal((20, 3)), columns=["u0", "u1", "u2"]).assign(cell=range(20), label=["a", "b"] * 10, arm=arm)
            for arm in ("pca", "dice")
        ]
    )
    plot = figures.maps(cells, pd.DataFrame({"cell": range(20), "spread": rng.random(20)}))
    assert [sum(len(c.get_offsets()) for c in ax.collections) for ax in plot.axes[:3]] == [20, 20, 20]


def test_chain_averages_against_exact_means():
    columns = ("exact_gaussian", "exact_mixture", "wiener_sampled", "gmm_sampled", "dice")
    table = pd.DataFrame({c: [float(i), i + 1.0] for i, c in enumerate(columns)}).assign(seed=[0, 1])
    panels = figures.exact_posterior(table).axes
    assert [ax.collections[0].get_offsets().tolist() for ax in panels] == [[[0, 2]], [[1, 3]], [[1, 4]]]


def test_lines_between_modes_and_the_choice_of_rho():
    path = pd.DataFrame({"share": [0.0, 0.5, 1.0] * 2, "second": [0, 0.5, 1] * 2, "entropy": [0, 0.69, 0] * 2, "set_size": [1, 2, 1] * 2})
    plot = figures.between_modes(path.assign(seed=[0] * 3 + [1] * 3))
    assert plot.axes[0].lines[-1].get_ydata().tolist() == [0, 0.5, 1]
    table = pd.DataFrame({"relative": [0.3, 1.2], "rmse": [2.0, 1.0], "rmse_pca": [2.0, 2.0], "target": ["setup2"] * 2})
    dots = figures.rho_choice(table).axes[0].lines
    assert dots[1].get_xdata()[0] == 1.2
