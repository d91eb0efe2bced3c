"""One look for all figures: size, colours that colour-blind readers can tell apart, a headless backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe & Ito (2008), without the yellow that fades on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")


def figure(width: float = 7.0, height: float = 4.0, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A figure (inches) and its axes in the common style; `options` go to `plt.subplots`."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    import matplotlib.pyplot as plt
    from cycler import cycler

    style: Any = {
        "axes.prop_cycle": cycler(color=COLOURS),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "figure.dpi": 110,
        "font.size": 9.5,
        "legend.frameon": False,
        "svg.hashsalt": "iclr2026-flows",
    }
    with plt.rc_context(style):
        return plt.subplots(rows, columns, figsize=(width, height), layout="constrained", **options)
