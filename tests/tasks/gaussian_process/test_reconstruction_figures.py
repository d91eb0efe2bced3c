from __future__ import annotations

import numpy as np
import pytest
from matplotlib import pyplot as plt

from tasks.gaussian_process.masked_images import mask_images
from tasks.gaussian_process.reconstruction_figures import examples


@pytest.mark.parametrize(("pixels", "shape"), [(64, (8, 8)), (560, (28, 20))])
def test_images_are_drawn_with_what_is_hidden_left_out(pixels, shape):
    masked = mask_images(np.random.default_rng(0).normal(size=(5, pixels)), 0.75, 2, np.random.default_rng(1))
    drawn = examples(masked, {"DBVI": masked.images + 1.0}, 3)
    pictures = [axis.images[0].get_array() for axis in drawn.axes]
    assert len(pictures) == 9
    np.testing.assert_array_equal(pictures[1], masked.images[1].reshape(shape))
    np.testing.assert_array_equal(np.ma.getmaskarray(pictures[3]), ~masked.observed[0].reshape(shape))
    np.testing.assert_array_equal(pictures[8], masked.images[2].reshape(shape) + 1.0)
    assert [axis.get_ylabel() for axis in drawn.axes if axis.get_ylabel()] == ["image", "observed", "DBVI"]
    plt.close(drawn)


def test_images_of_unknown_size_are_refused():
    masked = mask_images(np.random.default_rng(0).normal(size=(5, 10)), 0.5, 2, np.random.default_rng(1))
    with pytest.raises(ValueError, match=r"images must have one of \[64, 560, 784\] pixels, got 10"):
        examples(masked, {}, 3)
