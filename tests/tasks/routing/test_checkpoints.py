from __future__ import annotations

import pytest
import torch
from routing_twins import mixed, seeded

from tasks.routing.attention_model import AttentionModel
from tasks.routing.checkpoints import load_model, save_model
from tasks.routing.lazymask import lazy_decode


def test_a_saved_model_decodes_as_before(tmp_path):
    instances = mixed(3, 8, 6)[1]
    model = AttentionModel("tsptw", 8, 2, 1, 16, generator=seeded(1)).eval()
    save_model(tmp_path / "model.safetensors", model)
    again = load_model(tmp_path / "model.safetensors", "tsptw", width=8)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert torch.equal(*(lazy_decode(instances, m.scorer(instances), 9).tours for m in (model, again)))
    assert not load_model(tmp_path / "model.safetensors", "tsptw", refinement=False).refinement


def test_what_does_not_fit_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(FileNotFoundError, match="no weights at"):
        load_model(path, "tsptw")
    save_model(path, AttentionModel("tspdl", 8, 2, 1, 16, generator=seeded(1)))
    with pytest.raises(ValueError, match="a model for tspdl, wanted is one for tsptw"):
        load_model(path, "tsptw")
    with pytest.raises(ValueError, match="of width 8, wanted is 64"):
        load_model(path, "tspdl", width=64)
    path.write_text("no weights")
    with pytest.raises(ValueError, match="is no file of weights"):
        load_model(path, "tsptw")
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="weights of something else"):
        load_model(path, "tsptw")
