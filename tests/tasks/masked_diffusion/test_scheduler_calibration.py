from __future__ import annotations

import numpy as np
import pytest
from diffusion_twins import MASK
from hypothesis import given
from hypothesis import strategies as st

from tasks.masked_diffusion.decoding import Specials
from tasks.masked_diffusion.forced import ForcedDenoiser
from tasks.masked_diffusion.prefix_schedule import LspParams
from tasks.masked_diffusion.scheduler_calibration import (
    CalibrationParams,
    Trial,
    cheapest,
    lsp_settings,
    read_chosen,
    threshold_settings,
    tune,
)
from tasks.masked_diffusion.schedulers import QuotaParams, ThresholdParams

TRIALS = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=10)


@given(TRIALS, st.floats(0, 1), st.floats(0, 0.2), st.sampled_from(["nfe", "token_forwards"]))
def test_the_choice_is_the_cheapest_that_keeps_the_score(values, reference, loss, cost):
    trials = [Trial(QuotaParams(), *map(float, value)) for value in values]
    found = cheapest(trials, reference, loss, cost)
    kept = [trial for trial in trials if trial.em >= reference - loss - 1e-12]
    if kept:
        assert found in kept
        assert getattr(found, cost) == min(getattr(trial, cost) for trial in kept)
    else:
        assert found.em == max(trial.em for trial in trials)


def test_ties_go_to_the_other_cost():
    trials = [Trial(QuotaParams(), 1.0, 4, 90), Trial(QuotaParams(), 1.0, 4, 80)]
    assert cheapest(trials, 1.0, 0.0, "nfe").token_forwards == 80


def test_grids():
    params = CalibrationParams()
    settings = list(lsp_settings(params, [4]))
    assert len(settings) == 2 * 2 * 3
    assert all(setting.beta >= setting.alpha for setting in settings)
    assert len(list(lsp_settings(CalibrationParams(alpha=(0.25, 0.6), beta=(0.5, 1.0)), [4]))) == 3 * 3
    plain = list(threshold_settings(params))
    assert len(plain) == 5 * 3
    assert len(plain) >= len(settings) + len(params.window) - 1  # the rival is tuned no less
    assert not [s for s in plain if s.cache == "dual" and s.block is None]


def test_tuning_finds_the_wide_floor_that_costs_nothing():
    """An oracle with margins between 1 and 2: a floor of 1 lets everything through, so it is cheapest and still right."""
    rng = np.random.default_rng(0)
    answer, margins = rng.integers(2, 9, 16).tolist(), (1.2 + 0.5 * rng.random(16)).tolist()
    params = CalibrationParams(alpha=(0.25,), beta=(1.0,), tau_min=(1.0, 3.0), window=(0, 4), block=(4, None))
    reference, lsp, threshold, trials = tune(ForcedDenoiser(1, answer, margins, 9), [[2]], [answer], Specials(MASK), params)
    assert reference == 1.0
    assert lsp.tau_min == 1.0
    assert threshold == ThresholdParams(threshold=0.5, block=None, cache="prefix")
    assert len(trials) == 2 + 1 + 5 * 3


def test_nothing_to_choose_from_is_refused():
    with pytest.raises(ValueError, match="no settings to choose from"):
        cheapest([], 1.0, 0.0, "nfe")


def test_the_node_writes_what_it_chose(smoke):
    root, metrics, _ = smoke
    chosen = read_chosen(root / "train", 0)
    assert isinstance(chosen["lsp_calibrated"], LspParams)
    assert isinstance(chosen["threshold_calibrated"], ThresholdParams)
    assert chosen["lsp_calibrated"].alpha == metrics["train"]["calibration.alpha.trace"]
