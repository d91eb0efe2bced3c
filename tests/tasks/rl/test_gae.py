import numpy as np
import pytest

from tasks.rl.gae import advantages_and_returns


def case(seed=0, t=9, n=5):
    rng = np.random.default_rng(seed)
    length = rng.integers(1, t + 1, n)
    alive = np.arange(t)[:, None] < length
    return np.where(alive, rng.random((t, n)), 0), np.where(alive, rng.normal(size=(t, n)), 0), alive


def slow(reward, value, alive, gamma, lam, last):
    """The sum of discounted TD errors, written out."""
    found = np.zeros(reward.shape)
    for i in range(reward.shape[1]):
        length = int(alive[:, i].sum())
        v = [*value[:length, i], last]
        delta = [reward[t, i] + gamma * v[t + 1] - v[t] for t in range(length)]
        for t in range(length):
            found[t, i] = sum((gamma * lam) ** (k - t) * delta[k] for k in range(t, length))
    return found


@pytest.mark.parametrize(("gamma", "lam", "last"), [(1.0, 0.95, 0.0), (0.9, 0.5, 0.0), (0.97, 0.8, 2.0)])
def test_it_equals_the_sum_written_out(gamma, lam, last):
    reward, value, alive = case()
    advantage, target = advantages_and_returns(reward, value, alive, gamma, lam, last)
    np.testing.assert_allclose(advantage, slow(reward, value, alive, gamma, lam, last), atol=1e-12)
    np.testing.assert_allclose(target, np.where(alive, advantage + value, 0))


def test_lambda_one_gives_the_return_minus_the_value_and_lambda_zero_the_td_error():
    reward, value, alive = case(1)
    returns = np.where(alive, np.cumsum(reward[::-1], 0)[::-1], 0)
    np.testing.assert_allclose(advantages_and_returns(reward, value, alive, 1.0, 1.0)[0], np.where(alive, returns - value, 0), atol=1e-12)
    following = np.vstack([value[1:], np.zeros((1, value.shape[1]))])
    error = np.where(alive, reward + following - value, 0)
    np.testing.assert_allclose(advantages_and_returns(reward, value, alive, 1.0, 0.0)[0], error, atol=1e-12)


def test_a_cut_rollout_is_continued_by_the_critic_and_a_finished_one_is_not():
    one = (np.zeros((1, 2)), np.zeros((1, 2)), np.ones((1, 2), bool))
    advantage, _ = advantages_and_returns(*one, gamma=0.5, lam=1.0, last_value=np.array([0.0, 4.0]))
    assert advantage.tolist() == [[0.0, 2.0]]


@pytest.mark.parametrize(("gamma", "lam"), [(1.1, 0.9), (0.9, -0.1)])
def test_impossible_discounts_are_refused(gamma, lam):
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        advantages_and_returns(*case(), gamma=gamma, lam=lam)


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="one shape"):
        advantages_and_returns(np.zeros((2, 1)), np.zeros((3, 1)), np.ones((2, 1), bool))
