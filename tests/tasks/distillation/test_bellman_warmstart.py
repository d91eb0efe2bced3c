"""Banks of predictors, their losses, and first rows."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from tasks.distillation.bellman import bellman_losses
from tasks.distillation.bellman_warmstart import BellmanStartParams, bank_for, load_batch
from tasks.offline_rl.transitions import TdBatch

pytestmark = pytest.mark.xdist_group("distillation")


def test_the_stage_is_deterministic(smoke):
    (first, _, _), (second, _, _) = smoke
    assert first["warmstart-bellman"] == second["warmstart-bellman"]
    assert first["warmstart-bellman"]


def test_losses_are_those_of_the_banks(smoke, parameters):
    folder = smoke[0][2]
    params = parameters("smoke")["warmstart-bellman"]
    kept = load_file(folder / "warmstart-bellman" / "acrobot.1.safetensors")
    batch, _ = load_batch(folder / "prepare-transitions", "acrobot", 1)
    bank = bank_for(params, "rff", "acrobot", 1, batch)
    np.testing.assert_allclose(bellman_losses(batch, bank, 0.97, chunk=37), kept["losses.rff"], rtol=1e-5)
    assert len(set(kept["random.100"])) == 100
    assert kept["random.100"].max() < len(batch)


def test_banks_are_the_same_however_often_they_are_drawn():
    params = BellmanStartParams(predictors=5, heldout=4)
    rng = np.random.default_rng(0)
    batch = TdBatch(rng.standard_normal((9, 4)), np.zeros(9, int), rng.standard_normal(9), np.zeros((9, 4)), np.ones(9))

    def coefficients(name, seed=0, k=None):
        return bank_for(params, name, "cartpole", seed, batch, k).coefficients.numpy()

    np.testing.assert_array_equal(coefficients("rff"), coefficients("rff"))
    np.testing.assert_array_equal(coefficients("rff")[..., :3], coefficients("rff", k=3))
    np.testing.assert_array_equal(coefficients("rff"), coefficients("no_terminals"))
    assert not np.array_equal(coefficients("rff"), coefficients("rff", seed=1))
    assert coefficients("heldout").shape == (2, 49, 4)
    assert not np.array_equal(coefficients("rff")[..., :4], coefficients("heldout"))
    with pytest.raises(ValueError, match="holds 5 predictors, asked for 6"):
        coefficients("rff", k=6)


def test_heldout_predictors_are_new_members_of_the_class_that_is_matched():
    params = BellmanStartParams(predictors=5, heldout=4)
    rng = np.random.default_rng(0)
    batch = TdBatch(rng.standard_normal((9, 4)), np.zeros(9, int), rng.standard_normal(9), np.zeros((9, 4)), np.ones(9))
    names = ("rff", "rff_scaled", "no_reward_scale", "heldout", "heldout_features")
    banks = {name: bank_for(params, name, "cartpole", 0, batch) for name in names}
    frequencies = {name: bank.frequency.numpy() for name, bank in banks.items()}
    for name in names[1:-1]:
        np.testing.assert_array_equal(frequencies[name], frequencies["rff"])
        np.testing.assert_array_equal(banks[name].phase, banks["rff"].phase)
    assert not np.intersect1d(frequencies["heldout_features"], frequencies["rff"]).size
    assert not np.intersect1d(banks["heldout"].coefficients, banks["rff"].coefficients).size
    assert not np.intersect1d(banks["heldout"].reward_scale, banks["rff"].reward_scale).size


def test_a_bank_to_judge_by_is_required():
    with pytest.raises(ValueError, match="must include one called 'heldout'"):
        BellmanStartParams(banks={"rff": {}})
