from __future__ import annotations

import pandas as pd
import pnp_stages
import pytest
from pydantic import ValidationError

from tasks.common.formats import read_json
from tasks.single_cell.calibration import CalibrateParams


def test_the_chosen_rho_has_the_smallest_error_on_the_slice(pipeline):
    root, metrics, _ = pipeline
    table = pd.read_parquet(root / "train-rho/rho.parquet")
    chosen = read_json(root / "train-rho/chosen.json")["rho"]
    assert set(chosen) == set(pnp_stages.TARGETS)
    for (target, seed), rows in table.groupby(["target", "seed"]):
        best = rows.loc[rows["rmse"].idxmin()]
        assert chosen[target][seed] == best["rho"]
        assert best["rho"] / best["relative"] == pytest.approx(rows["rho"].iloc[0] / 0.3)
    assert metrics["train-rho"]["dice.chosen_rho_relative.setup1.n"] == 2


def test_a_target_with_more_noise_gets_no_smaller_rho(pipeline):
    _, metrics, _ = pipeline
    found = metrics["train-rho"]
    assert found["dice.chosen_rho_relative.setup4"] >= found["dice.chosen_rho_relative.setup1"]
    assert found["dice.slice_rmse_ratio.setup4"] < 1.0


@pytest.mark.parametrize("bad", [{"grid": ()}, {"n_sub": 0}, {"gibbs": {"iterations": 0}}])
def test_impossible_parameters_are_refused(bad):
    with pytest.raises(ValidationError):
        CalibrateParams(**bad)
