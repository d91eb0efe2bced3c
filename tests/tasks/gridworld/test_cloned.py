import pytest

from tasks.gridworld.cloned import CloneParams

pytestmark = pytest.mark.xdist_group("polychromic")


@pytest.mark.parametrize("level", ["fourrooms", "goto"])
def test_every_seed_has_a_policy_of_its_own(smoke, level):
    metrics, _, folder = smoke
    files = [(folder / f"warmstart-{level}" / f"{s}.safetensors").read_bytes() for s in range(2)]
    assert files[0] != files[1]
    found = metrics[f"warmstart-{level}"]
    assert 0 < found[f"pretrained.imitation.{level}"] <= 1
    assert 0 <= found[f"pretrained.start_success.{level}"] <= 1


@pytest.mark.parametrize("change", [{"seeds": 0}, {"rate": 0.0}, {"held_out": 1.0}, {"hidden": ()}])
def test_impossible_parameters_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        CloneParams(**change)
