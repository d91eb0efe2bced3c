from __future__ import annotations

import json

import pytest
import torch
from diffusion_twins import small_model

from tasks.masked_diffusion.model import (
    MaskedDiffusionTransformer,
    ModelConfig,
    load_model,
    rotary_angles,
    rotate,
    rotate_pairs,
    save_model,
)


def test_every_position_sees_every_other():
    model, tokens = small_model(), torch.full((1, 6), 3)
    other = tokens.clone()
    other[0, 5] = 4
    with torch.no_grad():
        before, after = (model(x, torch.arange(6))[0, 0] for x in (tokens, other))
    assert not torch.allclose(before, after)


def test_positions_that_are_not_wanted_cost_nothing_and_change_nothing():
    model, tokens = small_model(), torch.arange(8)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(tokens, torch.arange(8), None, 3), model(tokens, torch.arange(8))[:, 3:])


def test_what_may_not_be_attended_to_changes_nothing():
    model, tokens = small_model(), torch.full((1, 6), 3)
    other = tokens.clone()
    other[0, 5] = 4
    allowed = torch.ones(1, 6, 6, dtype=torch.bool)
    allowed[0, :5, 5] = False
    with torch.no_grad():
        before, after = (model(x, torch.arange(6), None, 1, allowed)[0] for x in (tokens, other))
    torch.testing.assert_close(before[:4], after[:4])
    assert not torch.allclose(before[4], after[4])


def test_rotation_depends_on_distance_alone():
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(8, generator=generator), torch.randn(8, generator=generator)

    def product(a: int, b: int) -> float:
        x = rotate(torch.stack([query, key]), *rotary_angles(torch.tensor([a, b]), 8))
        return float(x[0] @ x[1])

    assert product(3, 1) == pytest.approx(product(13, 11), abs=1e-5)
    assert product(3, 1) != pytest.approx(product(3, 2), abs=1e-3)
    assert product(5, 5) == pytest.approx(float(query @ key), abs=1e-5)


def test_pairs_turn_as_halves_do_with_channels_reordered():
    x = torch.randn(2, 7, 8, generator=torch.Generator().manual_seed(0))
    cosines, sines = rotary_angles(torch.arange(7), 8)
    halves = rotate(torch.cat([x[..., ::2], x[..., 1::2]], -1), cosines, sines)
    pairs = rotate_pairs(x, torch.complex(cosines, sines))
    torch.testing.assert_close(torch.cat([pairs[..., ::2], pairs[..., 1::2]], -1), halves)


def test_a_full_cache_gives_the_logits_of_no_cache():
    model, tokens = small_model(), torch.randint(1, 9, (1, 10), generator=torch.Generator().manual_seed(1))
    cache = model.new_cache(10)
    cache.begin(0, 10)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens, torch.arange(10), cache), model(tokens, torch.arange(10)))


def test_save_and_load_round_trip(tmp_path):
    model = small_model(seed=4)
    save_model(tmp_path / "m", model)
    again = load_model(tmp_path / "m")
    assert again.config == model.config
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))


def test_same_seed_same_weights():
    first, second, third = small_model(seed=1), small_model(seed=1), small_model(seed=2)
    assert torch.equal(first.head.weight, second.head.weight)
    assert not torch.equal(first.head.weight, third.head.weight)


def test_bad_sizes_and_folders_are_refused(tmp_path):
    with pytest.raises(ValueError, match="width must be a multiple of 2 \\* heads = 6, got 16"):
        ModelConfig(5, 8, width=16, heads=3)
    with pytest.raises(ValueError, match="layers must be at least 1, got 0"):
        ModelConfig(5, 8, layers=0)
    with pytest.raises(ValueError, match="mask_id must lie in \\[0, 5\\), got 5"):
        ModelConfig(5, 8, mask_id=5)
    with pytest.raises(FileNotFoundError, match=r"there is no config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llada"}))
    with pytest.raises(ValueError, match="holds a model of another kind"):
        load_model(tmp_path)
    save_model(tmp_path, small_model())
    about = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**about, "width": 32}))
    with pytest.raises(ValueError, match=r"does not fit its config\.json"):
        load_model(tmp_path)


def test_all_parameters_are_used():
    model = MaskedDiffusionTransformer(ModelConfig(5, 8, width=16, layers=2, heads=2, hidden=32), torch.Generator().manual_seed(0))
    model(torch.randint(0, 5, (2, 8), generator=torch.Generator().manual_seed(0)), torch.arange(8)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
