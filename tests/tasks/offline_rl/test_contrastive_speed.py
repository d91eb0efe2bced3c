"""Training times side by side: ratios to the method, the short budget in proportion."""

import pytest
from contrastive_stages import SECTIONS

from tasks.offline_rl.contrastive_speed import SpeedParams

pytestmark = pytest.mark.xdist_group("contrastive")


def test_ratios_are_positive_and_the_short_budget_is_its_share_of_the_long_one(contrastive_smoke):
    metrics = contrastive_smoke[0].metrics["evaluate-speed"]
    section = SECTIONS["smoke"]["evaluate"]["speed"]
    configs = SpeedParams(**section).configs()
    for arm, short in section["short_updates"].items():
        whole = configs[arm].updates
        assert metrics[f"{arm}_short.time_ratio.medium"] == pytest.approx(short / whole * metrics[f"{arm}.time_ratio.medium"])
        assert metrics[f"{arm}.time_ratio.medium"] > 0
    assert "preforl.time_ratio.medium" not in metrics


def test_milliseconds_are_timings_and_no_metrics(contrastive_smoke):
    run = contrastive_smoke[0]
    assert run.log.timings["iql_ms_per_update"] > 0
    assert run.log.timings["nearest_failures_ms"] > 0
    assert not any("ms_per_update" in name for name in run.all_metrics())
