"""Minari in and out: rules of success, round trip, folders."""

import numpy as np
import pytest
from sparse_factory import episodes

from tasks.common.assets import AssetMissing
from tasks.offline_rl.maze_controllers import BEHAVIOURS, collect_maze
from tasks.offline_rl.minari_data import load_minari
from tasks.offline_rl.minari_episodes import export_minari, flatten_one, open_minari, read_minari_episodes
from tasks.offline_rl.point_maze import MAZES


@pytest.fixture(scope="module")
def exported(store):
    data, _ = collect_maze(MAZES["umaze"], BEHAVIOURS["umaze"], 12, np.random.default_rng(0))
    return data, export_minari(data, "test/umaze-v0")


def test_what_is_exported_comes_back(exported):
    data, dataset = exported
    back = read_minari_episodes(dataset)
    assert back.about["rule"] == "reward"
    assert back.lengths.tolist() == data.lengths.tolist()
    for name in ("obs", "next_obs", "action"):
        np.testing.assert_allclose(getattr(back, name), getattr(data, name), atol=1e-6)
    for name in ("reward", "terminated", "truncated", "success"):
        np.testing.assert_array_equal(getattr(back, name), getattr(data, name))


def test_both_sparse_rules_agree_and_the_limit_cuts(exported):
    data, dataset = exported
    by_info = read_minari_episodes(dataset, "info")
    np.testing.assert_array_equal(by_info.success, data.success)
    assert read_minari_episodes(dataset, limit=3).n_episodes == 3


def test_a_folder_in_the_format_is_as_good_as_an_identifier(exported, tmp_path):
    data, dataset = exported
    for path in (dataset.spec.data_path, str(dataset.spec.data_path).removesuffix("/data")):
        assert read_minari_episodes(open_minari(str(path))).n_episodes == data.n_episodes
    assert open_minari("test/umaze-v0").total_episodes == 12
    with pytest.raises(ValueError, match="is not a Minari data set \\(it holds nothing\\)"):
        open_minari(str(tmp_path))
    with pytest.raises(AssetMissing, match="minari download test/none-v0"):
        open_minari("test/none-v0")


def test_dense_rewards_are_told_by_a_quantile_of_returns_and_keep_their_length(store):
    dataset = load_minari("test/pendulum-v0")
    data = read_minari_episodes(dataset, quantile=0.5)
    raw = [float(np.sum(e.rewards)) for e in dataset.iterate_episodes()]
    assert data.about["rule"] == "quantile"
    assert data.about["level"] == pytest.approx(np.median(raw))
    assert (data.returns > 0).tolist() == [r > np.median(raw) for r in raw]
    assert data.lengths.tolist() == [30, 30, 30]
    assert np.flatnonzero(data.reward).tolist() == [30 * (i + 1) - 1 for i in np.flatnonzero(data.returns)]
    assert (data.high == 2).all()


def test_rewards_that_go_on_after_success_are_cut(store):
    base = episodes([6, 5], [False, False], a=1)
    won = np.zeros(11, bool)
    won[[2, 3, 4]] = True
    dense = type(base)(**{**{f: getattr(base, f) for f in base.__dataclass_fields__}, "reward": won.astype(float), "success": won})
    data = read_minari_episodes(export_minari(dense, "test/cut-v0"))
    assert data.lengths.tolist() == [3, 5]
    assert data.terminated.tolist() == [False, False, True, False, False, False, False, False]
    assert data.truncated[-1]


def test_rules_that_do_not_apply_are_named(store):
    dataset = load_minari("test/pendulum-v0")
    with pytest.raises(ValueError, match='rule "info" needs'):
        read_minari_episodes(dataset, "info")
    with pytest.raises(ValueError, match="at most two values"):
        read_minari_episodes(dataset, "reward")
    with pytest.raises(ValueError, match="quantile must lie in"):
        read_minari_episodes(dataset, quantile=1.0)

    class Discrete:
        action_space = "Discrete(3)"

    with pytest.raises(ValueError, match="bounded one-dimensional box"):
        read_minari_episodes(Discrete())


def test_single_observations_are_flattened_by_key():
    assert flatten_one({"b": np.array([3.0]), "a": np.array([1.0, 2.0])}).tolist() == [1, 2, 3]
    assert flatten_one(np.array([[1, 2]])).tolist() == [1, 2]
