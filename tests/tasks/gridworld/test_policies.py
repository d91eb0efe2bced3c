import numpy as np

from tasks.gridworld.layouts import read_layouts
from tasks.gridworld.policies import load_policy, make_policy, save_policy
from tasks.gridworld.static_worlds import StaticWorlds


def test_weights_survive_a_round_trip(tmp_path):
    worlds = StaticWorlds(read_layouts("fourrooms", [0, 1]))
    policy, other = make_policy(worlds, (8,), 0), make_policy(worlds, (8,), 1)
    seen = np.arange(20)
    assert np.abs(policy.behaviour(seen) - other.behaviour(seen)).max() > 0
    save_policy(tmp_path / "a.safetensors", policy)
    again = load_policy(tmp_path / "a.safetensors", other)
    np.testing.assert_array_equal(again.behaviour(seen), policy.behaviour(seen))
    np.testing.assert_array_equal(again.appraise(seen), policy.appraise(seen))
