import numpy as np
import polychromic_stages
import pytest

from tasks.common.formats import read_parquet
from tasks.common.node import Inputs, NullLog
from tasks.gridworld.tuned import TuneParams, mean_curves, train

pytestmark = pytest.mark.xdist_group("polychromic")


def test_all_arms_use_equal_environment_steps(smoke):
    """Each within one batch: at most its episodes and vines at the full horizon."""
    section = polychromic_stages.SECTIONS["smoke"]["train"]
    for stage in ("train-fourrooms", "train-sets", "train-ablations"):
        params = TuneParams(**section[stage.split("-")[1]])
        for name, arm in params.arms.items():
            batch = arm.episodes * 100 * (1 + (arm.states * arm.vines if arm.objective else 0))
            used = smoke[0][stage][f"{name}.env_steps.fourrooms"]
            assert params.env_steps <= used < params.env_steps + batch


def test_metrics_do_not_depend_on_the_number_of_processes(smoke, tmp_path, monkeypatch):
    monkeypatch.setenv("PAPERS_THREADS", "2")
    again, _ = polychromic_stages.run(tmp_path, ["train-sets"], source=smoke[2])
    assert again["train-sets"] == smoke[0]["train-sets"]
    for path in sorted((smoke[2] / "train-sets").glob("*.safetensors")):
        assert path.read_bytes() == (tmp_path / "train-sets" / path.name).read_bytes()


def test_curves_look_at_the_policy_from_the_start_to_the_end(smoke):
    table = read_parquet(smoke[2] / "train-fourrooms" / "learning.parquet")
    for _, own in table.groupby(["arm", "seed", "name"]):
        assert own["env_steps"].iloc[0] == 0
        assert own["env_steps"].is_monotonic_increasing
    assert set(table["name"]) == {"success", "pass4", "diversity4", "entropy_nats"}


def test_looking_more_often_changes_no_weights(smoke, tmp_path):
    params = TuneParams(**{**polychromic_stages.SECTIONS["smoke"]["train"]["fourrooms"], "looks": 7, "seeds": 1})
    folder = smoke[2]
    train(params, Inputs({need: folder / need for need in ("prepare-fourrooms", "warmstart-fourrooms")}), tmp_path, NullLog())
    for path in tmp_path.glob("*.safetensors"):
        assert path.read_bytes() == (folder / "train-fourrooms" / path.name).read_bytes(), path.name


def test_curves_are_averaged_over_seeds_on_a_grid():
    rows = [("a", 0, 98, "x", 1.0), ("a", 1, 103, "x", 3.0), ("a", 0, 201, "x", 5.0)]
    assert mean_curves(rows, 100) == [(100, "x", 2.0), (200, "x", 5.0)]
    assert np.isfinite(mean_curves(rows, 100)[0][2])


@pytest.mark.parametrize("change", [{"arms": {}}, {"env_steps": 0}, {"tries": 3}, {"seeds": 0}])
def test_impossible_parameters_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        TuneParams(**change)
