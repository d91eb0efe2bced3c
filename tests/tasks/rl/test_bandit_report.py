import numpy as np
import pytest

from tasks.common.node import Inputs, NullLog
from tasks.rl.bandit_report import BanditParams, evaluate


def test_the_stage_reports_what_the_claim_reads_and_repeats_itself(tmp_path):
    params = BanditParams(seeds=3, steps=20, batch=8)
    first, second = (evaluate(params, Inputs(), tmp_path, NullLog()) for _ in range(2))
    assert first == second
    assert first["poly.mass_rate.bandit"] > 0 > first["plain.mass_rate.bandit"]
    assert first["poly.marginal_advantage.bandit"] > 0
    assert first["poly.flow_gain.bandit"] > 0 > first["plain.flow_gain.bandit"]
    assert first["poly.mass_gain.bandit.n"] == 3
    assert np.isfinite(list(first.values())).all()


@pytest.mark.parametrize(
    "change", [{"policy": (0.5, 0.5)}, {"policy": (1.0, 0.0, 0.0)}, {"reward": (1.0, 2.0, 0.0)}, {"rare": 3}, {"set_size": 1}]
)
def test_bandits_that_make_no_sense_are_refused(change):
    with pytest.raises(ValueError, match=r"policy|set_size|fit"):
        BanditParams(**change)
