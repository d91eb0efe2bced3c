from __future__ import annotations

import numpy as np
import pytest

from tasks.gaussian_process.masked_images import load_masked, mask_images, save_masked

IMAGES = np.random.default_rng(0).uniform(0, 16, (20, 12))


def test_every_image_shows_the_same_number_of_pixels_and_hidden_ones_decide_nothing():
    masked = mask_images(IMAGES, 0.75, 3, np.random.default_rng(1))
    assert masked.observed.sum(1).tolist() == [3] * 20
    assert len({tuple(row) for row in masked.observed.tolist()}) > 10
    other = np.where(masked.observed, IMAGES, 1e6)
    again = mask_images(other, 0.75, 3, np.random.default_rng(1))
    np.testing.assert_array_equal(again.latents, masked.latents)
    assert (again.mean, again.sd) == (masked.mean, masked.sd)


def test_pixels_come_back_in_original_units():
    masked = mask_images(IMAGES, 0.5, 2, np.random.default_rng(2))
    np.testing.assert_allclose(masked.images * masked.sd + masked.mean, IMAGES)
    seen = masked.images[masked.observed]
    assert (seen.mean(), seen.std()) == pytest.approx((0.0, 1.0), abs=1e-12)


def test_latents_are_standardised_components_and_order_images_by_what_differs():
    # Golden: images are t * ones, so that the first component of what is seen must order them like t.
    t = np.linspace(-1, 1, 20)
    masked = mask_images(t[:, None] * np.ones((20, 40)), 0.25, 1, np.random.default_rng(3))
    assert abs(np.corrcoef(masked.latents[:, 0], t)[0, 1]) > 0.95
    np.testing.assert_allclose((masked.latents.mean(0), masked.latents.std(0)), ([0.0], [1.0]), atol=1e-10)


def test_written_images_are_read_back_exactly(tmp_path):
    masked = mask_images(IMAGES, 0.75, 11, np.random.default_rng(4))
    save_masked(tmp_path / "m.parquet", masked)
    read = load_masked(tmp_path / "m.parquet")
    for field in ("images", "observed", "latents", "mean", "sd"):
        np.testing.assert_array_equal(getattr(read, field), getattr(masked, field))
    assert read.observed.dtype == bool


@pytest.mark.parametrize(
    ("images", "share", "latent", "message"),
    [
        (IMAGES, 1.0, 2, r"share must lie in \(0, 1\), got 1.0"),
        (IMAGES, 0.5, 13, r"latent must lie in 1..12 with images \(20, 12\), got 13"),
        (np.ones((4, 4)), 0.5, 2, "observed pixels are equal to 1.0"),
    ],
)
def test_impossible_masks_are_refused(images, share, latent, message):
    with pytest.raises(ValueError, match=message):
        mask_images(images, share, latent, np.random.default_rng(0))
