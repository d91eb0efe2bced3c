"""Figure of image reconstruction: what is there, what is shown, and what models make of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tasks.common.plotting import figure
from tasks.gaussian_process.masked_images import MaskedImages

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHAPES = {64: (8, 8), 560: (28, 20), 784: (28, 28)}
"""Rows and columns of an image by its number of pixels."""

HIDDEN = "#9ecae1"


def examples(images: MaskedImages, reconstructions: Mapping[str, np.ndarray], count: int) -> Figure:
    """One column per image: the image, its observed pixels (hidden ones in blue), and each model's mean reconstruction.

    Args:
        images: a set of masked images, (n, p).
        reconstructions: standardised pixels (count or more, p) by the model's name.
        count: images that are drawn.

    Raises:
        ValueError: for images of an unknown size.
    """
    import matplotlib

    pixels = images.images.shape[1]
    if pixels not in SHAPES:
        raise ValueError(f"images must have one of {sorted(SHAPES)} pixels, got {pixels}")
    rows = {"image": images.images, "observed": np.where(images.observed, images.images, np.nan), **reconstructions}
    tall, wide = SHAPES[pixels]
    drawn, axes = figure(8.0, len(rows) * 7.2 / count * tall / wide, len(rows), count, squeeze=False)
    colours = matplotlib.colormaps["gray"].with_extremes(bad=HIDDEN)
    low, high = images.images.min(), images.images.max()
    for line, (name, pictures) in zip(axes, rows.items(), strict=True):
        for axis, picture in zip(line, pictures, strict=False):
            axis.imshow(picture.reshape(tall, wide), cmap=colours, vmin=low, vmax=high, interpolation="nearest")
            axis.grid(visible=False)
            axis.set_xticks([])
            axis.set_yticks([])
            for side in axis.spines.values():
                side.set_visible(False)
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    return drawn
