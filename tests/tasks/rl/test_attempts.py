import numpy as np
import pytest
from toy_corridor import Corridor, fair

from tasks.rl.attempts import Attempts, attempts, greedy


def test_quantities_of_a_table_of_attempts():
    returns = np.array([[0.9, 0.0], [0.0, 0.0], [0.8, 0.0], [0.0, 0.5]])
    places = np.array([[1, 1], [3, 1], [1, 1], [7, 1]])
    a = Attempts(returns, places, np.zeros((4, 2)))
    assert a.pass_at(1) == pytest.approx((0.5 + 0.25) / 2)
    assert a.pass_at(4) == 1.0
    assert a.diversity() == pytest.approx((3 / 4 + 1 / 4) / 2)
    with pytest.raises(ValueError, match="a group takes 5"):
        a.diversity(5)


def test_pass_at_one_is_the_exact_chance_of_success():
    """A walk to the right in the corridor: the chance of arriving within the horizon, by propagating the distribution."""
    world = Corridor(length=5, horizon=12)
    mass, done = np.zeros(5), 0.0
    mass[0] = 1.0
    for _ in range(12):
        step = np.zeros(5)
        for at in range(4):
            step[max(at - 1, 0)] += 0.5 * mass[at]
            step[at + 1] += 0.5 * mass[at]
        done += step[4]
        step[4] = 0.0
        mass = step
    found = attempts(world, fair, 1, 4000, np.random.default_rng(0))
    assert found.pass_at(1) == pytest.approx(done, abs=4 * np.sqrt(done * (1 - done) / 4000))
    assert found.entropy.mean() == pytest.approx(np.log(2), abs=1e-6)


def test_the_greedy_policy_takes_the_likeliest_action():
    chosen = greedy(lambda o: np.array([[0.4, 0.6], [0.9, 0.1]]))(np.zeros(2))
    assert chosen.tolist() == [[0, 1], [1, 0]]


def test_no_attempts_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        attempts(Corridor(), fair, 1, 0, np.random.default_rng(0))
