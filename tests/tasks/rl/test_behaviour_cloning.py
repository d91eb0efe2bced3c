import numpy as np
import pytest
from toy_corridor import policy

from tasks.rl.behaviour_cloning import clone


def test_the_policy_becomes_the_experts_and_entropy_keeps_it_noisy():
    seen = np.random.default_rng(0).integers(0, 9, 400)
    ends = []
    for entropy in (0.0, 0.5):
        p = policy()
        done = clone(p, seen, seen % 2, np.random.default_rng(1), epochs=30, batch=64, rate=0.02, entropy=entropy)
        assert done.accuracy == 1.0
        assert done.losses[-5:].mean() < done.losses[:5].mean()
        ends.append(p.behaviour(np.arange(9)).max(1).mean())
    assert ends[1] < ends[0]


def test_held_out_steps_teach_nothing():
    """All steps at observation 0 say 1, but those held out are judged alone."""
    seen, action = np.zeros(10, int), np.ones(10, int)
    done = clone(policy(), seen, action, np.random.default_rng(0), epochs=40, rate=0.05, held_out=0.5)
    assert done.accuracy == 1.0
    assert len(done.losses) == 40


@pytest.mark.parametrize(
    ("count", "held_out", "message"), [(0, 0.2, "no demonstrations"), (3, 0.1, "leaves nothing"), (10, 1.0, "leaves nothing")]
)
def test_missing_demonstrations_are_refused(count, held_out, message):
    with pytest.raises(ValueError, match=message):
        clone(policy(), np.zeros(count, int), np.zeros(count, int), np.random.default_rng(0), held_out=held_out)
