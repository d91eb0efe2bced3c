"""Data sets of the paper's cpu profile: names, coverage, starts, control."""

import numpy as np
import pytest
from sparse_factory import episodes

from tasks.common.formats import read_json
from tasks.common.node import Inputs, NullLog
from tasks.offline_rl.episodes import read_episodes
from tasks.offline_rl.learning_data import read_neighbours
from tasks.offline_rl.sparse_data import (
    SparseDataParams,
    batch_task,
    collect,
    keep_successes,
    load_held_out,
    load_learning_data,
    load_starts,
    prepare,
    shuffle_successes,
    task_of,
)

SMALL = SparseDataParams(
    datasets=("medium", "no_failures"), coverage=(3, 5), episodes={"medium": 50, "no_failures": 30}, coverage_episodes=80, seeds=2,
    validation=4, test=5,
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folders = []
    for threads in ("1", "2"):
        folder = tmp_path_factory.mktemp(f"sparse{threads}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PAPERS_THREADS", threads)
            folders.append((folder, prepare(SMALL, Inputs(), folder, NullLog())))
    return folders


def test_metrics_and_data_do_not_depend_on_the_number_of_workers(made):
    (a, first), (b, second) = made
    assert first == second
    for path in sorted(a.glob("*.parquet")):
        assert path.read_bytes() == (b / path.name).read_bytes()
    assert len(list(a.glob("*.parquet"))) == 8


def test_the_manifest_says_where_the_data_come_from(made):
    manifest = read_json(made[0][0] / "medium.1.json")
    assert manifest["environment"] == "PointMaze_Medium-v3"
    assert manifest["kinds"] == {"seeker": 20, "wanderer": 30}
    assert manifest["seed"] == [0, 1]
    assert manifest["versions"]["mujoco"]
    assert manifest["episodes"] == 50


def test_more_coverage_is_a_superset_with_the_same_failures(made):
    folder, metrics = made[0]
    few, many = (read_episodes(folder / f"medium_n{n}.0.parquet") for n in (3, 5))
    assert metrics["data.successes.medium_n3"] == 3
    assert metrics["data.successes.medium_n5"] == 5
    start = lambda data, won: {data.obs[s].tobytes() for s, r in zip(data.starts, data.returns, strict=True) if (r > 0) == won}  # noqa: E731
    assert start(few, True) < start(many, True)
    assert start(few, False) == start(many, False)


def test_data_without_failures_hold_successes_alone(made):
    ready = load_learning_data(made[0][0], "no_failures", 0)
    assert len(ready.negative) == 0
    assert len(ready.positive) > 3
    assert made[0][1]["behaviour.success.no_failures"] == 1


def test_learners_get_the_training_trajectories_and_scores_the_others(made):
    folder = made[0][0]
    data = read_episodes(folder / "medium.0.parquet")
    train, held, neighbour = read_neighbours(folder / "medium.0.npz")
    ready = load_learning_data(folder, "medium", 0)
    assert len(ready) == data.lengths[train].sum()
    assert len(neighbour) == len(ready)
    unseen = load_held_out(folder, "medium", 0)
    assert unseen is None or unseen.n_episodes == len(held)


def test_start_sets_are_disjoint_and_differ_between_seeds(made):
    validation, test = (load_starts(made[0][0], "medium", 2, split)[0] for split in ("validation", "test"))
    assert validation.shape == (2, 4, 4)
    assert test.shape == (2, 5, 4)
    assert len({s.tobytes() for s in np.concatenate([validation, test], 1).reshape(-1, 4)}) == 18


def test_shuffled_successes_are_as_many_and_elsewhere():
    data = episodes([4] * 30, [True] * 5 + [False] * 25)
    shuffled = shuffle_successes(data, np.random.default_rng(0))
    assert (shuffled.returns > 0).sum() == 5
    assert (shuffled.returns > 0)[:5].sum() < 5
    np.testing.assert_array_equal(shuffled.obs, data.obs)


def test_names_and_shortages_are_told():
    assert [task_of(n) for n in ("medium", "medium_n5", "no_failures", "reacher")] == ["medium", "medium", "goals", "reacher"]
    with pytest.raises(KeyError, match="unknown data set 'large'"):
        task_of("large")
    with pytest.raises(ValueError, match="asked for 9 successes"):
        keep_successes(episodes([3, 3], [True, False]), 9, np.random.default_rng(0))
    assert batch_task("umaze").horizon == 150
    data, kinds = collect("reacher", 20, np.random.default_rng(0))
    assert data.n_episodes == len(kinds) == 20
