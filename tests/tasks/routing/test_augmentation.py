from __future__ import annotations

import itertools

import pytest
import torch
from routing_twins import mixed, seeded

from tasks.routing.augmentation import augment, dihedral, random_images
from tasks.routing.exact import arrays_of, solve_exactly
from tasks.routing.instances import euclidean


def test_eight_different_maps_that_keep_distances_and_stay_in_the_square():
    locs = torch.rand((1, 9, 2), generator=seeded(0), dtype=torch.float64)
    images = [dihedral(locs, which) for which in range(8)]
    assert torch.equal(images[0], locs)
    for a, b in itertools.combinations(images, 2):
        assert not torch.allclose(a, b)
    for image in images:
        assert torch.allclose(euclidean(image), euclidean(locs), atol=1e-12)
        assert ((image >= 0) & (image <= 1)).all()


def test_they_form_a_group():
    point = torch.tensor([0.12, 0.34], dtype=torch.float64)
    images = [tuple(dihedral(point, which).tolist()) for which in range(8)]
    for a, b in itertools.product(range(8), repeat=2):
        twice = dihedral(dihedral(point, a), b)
        assert any(torch.allclose(twice, torch.tensor(image, dtype=torch.float64)) for image in images)


def test_images_have_the_same_optimal_tours():
    for instances in mixed(4, 7, 3):
        images = augment(instances)
        assert len(images) == 24
        costs = torch.tensor([solve_exactly(arrays).cost for arrays in arrays_of(images)]).view(8, 3)
        assert (costs == costs[0]).all()
        assert torch.equal(images.locs[:3], instances.locs)
    assert not torch.equal(random_images(instances, seeded(0)).locs, instances.locs)


def test_an_unknown_symmetry_is_refused():
    with pytest.raises(ValueError, match="0 to 7, got 8"):
        dihedral(torch.zeros(2), 8)
