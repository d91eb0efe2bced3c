import numpy as np
import pytest

from tasks.creativity.set_fine_tuning import CreativityArm, CreativityTraining, fine_tune_triples, sample_advantages
from tasks.creativity.tabular import from_counts
from tasks.creativity.triangles import judge, make_task
from tasks.rl.set_advantages import set_advantages


def test_polychromic_fine_tuning_keeps_more_triangles_than_ppo():
    task = make_task(24, 40, 20, 0.25, np.random.default_rng(0))
    found = {}
    for name, arm in {"ppo": CreativityArm(), "poly": CreativityArm(objective="polychromic")}.items():
        policy = from_counts(task)
        fine_tune_triples(policy, task, arm, CreativityTraining(updates=150), np.random.default_rng(1))
        found[name] = judge(task, policy.sample(500, np.random.default_rng(2)))
    assert found["ppo"].validity > 0.9
    assert found["poly"].unique_valid > 1.5 * found["ppo"].unique_valid


def test_advantages_of_consecutive_groups_are_the_librarys():
    reward, kinds = np.array([1.0, 0, 1, 1] * 4), np.arange(16) % 5
    arm = CreativityArm(objective="polychromic", set_size=2, group=8, sets=3)
    advantage, weight = sample_advantages(reward, kinds, arm, np.random.default_rng(0))
    expected = set_advantages(reward.reshape(2, 8), kinds.reshape(2, 8), np.random.default_rng(0), set_size=2, sets=3)
    np.testing.assert_array_equal(advantage, expected.advantage.ravel())
    np.testing.assert_array_equal(weight, expected.weight.ravel())
    plain, ones = sample_advantages(reward, kinds, CreativityArm(), np.random.default_rng(0))
    np.testing.assert_allclose(plain, (reward - 0.75) / reward.std(), atol=1e-6)
    assert (ones == 1).all()


def test_batches_and_sets_must_fit():
    task = make_task(12, 8, 6, 0.25, np.random.default_rng(0))
    with pytest.raises(ValueError, match="multiple of the group of 8, got 20"):
        fine_tune_triples(from_counts(task), task, CreativityArm(), CreativityTraining(samples=20), np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"1..8 \(samples in a group\), got 9"):
        CreativityArm(set_size=9)
