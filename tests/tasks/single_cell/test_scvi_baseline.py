from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from tasks.common.assets import AssetMissing
from tasks.single_cell.scvi_baseline import embed


def test_without_scvi_tools_the_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "scvi", None)  # as if it were not installed
    with pytest.raises(AssetMissing, match=r"scvi-tools is not installed; install it with: pip install 'scvi-tools"):
        embed(np.ones((5, 3)), np.ones((2, 3)))


def test_bad_requests_are_refused_before_anything_is_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "scvi", None)
    with pytest.raises(ValueError, match="same genes, got 3 and 4"):
        embed(np.ones((5, 3)), np.ones((2, 4)))
    with pytest.raises(ValueError, match="latents must be at least 1, got 0"):
        embed(np.ones((5, 3)), np.ones((2, 3)), latents=0)


class FakeModel:
    """Notes what it is trained on and gives the target's first columns back."""

    calls: list = []  # noqa: RUF012

    @classmethod
    def setup_anndata(cls, data):
        cls.calls.append(("setup", data.X.sum()))

    def __init__(self, data, n_latent):
        self.n_latent = n_latent

    def train(self, **settings):
        np.random.rand()  # what the library does to the global generator
        self.calls.append(("train", settings["max_epochs"]))

    def get_latent_representation(self, data):
        return data.X[:, : self.n_latent]


def test_it_trains_on_the_reference_embeds_the_target_and_leaves_global_generators(monkeypatch):
    fake = ModuleType("scvi")
    fake.settings, fake.model = SimpleNamespace(seed=None), SimpleNamespace(SCVI=FakeModel)
    monkeypatch.setitem(sys.modules, "scvi", fake)
    FakeModel.calls.clear()
    before = np.random.get_state()[1].copy()
    target = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(embed(np.full((5, 4), 2.0), target, latents=2, seed=7, epochs=3), target[:, :2])
    assert FakeModel.calls == [("setup", 40.0), ("train", 3)]
    assert fake.settings.seed == 7
    np.testing.assert_array_equal(np.random.get_state()[1], before)
