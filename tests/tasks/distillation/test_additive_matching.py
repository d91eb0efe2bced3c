"""Additive predictors: exact from the rank of their products on."""

import pytest

from tasks.distillation.additive_matching import AdditiveParams

pytestmark = pytest.mark.xdist_group("distillation")


def test_the_stage_is_deterministic(smoke):
    (first, _, _), (second, _, _) = smoke
    assert first["train-additive"] == second["train-additive"]
    assert first["train-additive"]


def test_the_loss_is_exact_from_the_rank_on_and_not_below(smoke):
    found = smoke[0][0]["train-additive"]
    assert found["rank.cartpole"] == 35
    assert found["threshold.cartpole"] == 78
    for environment in ("cartpole", "acrobot", "mountaincar"):
        assert found[f"additive_enough.heldout_loss_error.{environment}"] < 1e-9
        assert found[f"additive_few.heldout_loss_error.{environment}"] > 1e-3


def test_impossible_parameters_are_refused():
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        AdditiveParams(size=0)
