"""The comparison on a tiny random model."""

import pandas as pd
import pytest
import torch
from kept_log import KeptLog

from tasks.common.node import Inputs, NullLog
from tasks.low_rank.calibration import statistics_file
from tasks.low_rank.comparison import Cell, EvaluateParams, dropped, evaluate
from tasks.low_rank.statistics import load_statistics
from tests.tasks.low_rank.stages import CELLS

pytestmark = pytest.mark.usefixtures("one_process")


@pytest.fixture(scope="module")
def evaluated(folders, trained):
    params = EvaluateParams(
        seeds=2, cells=CELLS, tuned=("wsvd_kv", "wsvd_r50"), last=("wsvd_kv", "row_kv"), pairs=(("wsvd_kv", "head_white_kv"),)
    )
    log = KeptLog()
    return params, evaluate(params, Inputs(folders), folders["evaluate"], log), list(log.figures)


def test_comparison_reports_what_it_says(evaluated):
    params, metrics, figures = evaluated
    arms = {
        "svd_r50",
        "diagonal_r50",
        "permuted_r50",
        "qsvd_global_r50",
        "qsvd_same_cache",
        "head_white_r50",
        "head_white_r80",
        "head_white_kv",
        "head_white_2_kv",
    }
    arms |= {"wsvd_kv", "wsvd_r50", "wsvd_kv_last", "row_kv_last"}
    for arm in arms:
        for what in ("kl_nats", "nats", "perplexity", "weight_err", "act_err", "fisher_err", "param_ratio", "cache_ratio"):
            assert f"{arm}.{what}.smollm2" in metrics
    assert metrics["dense.perplexity.smollm2"] > 1
    # Moments of all calibration sequences are the calibration's; of fewer they are not.
    assert metrics["head_white_all_kv.act_err.smollm2"] == pytest.approx(metrics["head_white_kv.act_err.smollm2"], rel=0.01)
    assert metrics["head_white_2_kv.act_err.smollm2"] > metrics["head_white_kv.act_err.smollm2"]
    assert metrics["wsvd_kv.kl_nats.smollm2-head_white_kv.kl_nats.smollm2.n"] == params.seeds
    assert metrics["wsvd_kv.fisher_err_dropped.smollm2"] == 1.0
    assert {"divergence_by_ratio", "objective_and_held_out", "errors_by_layer", "spectra", "ranks", "bytes_read", "ablations"} <= set(
        figures
    )


def test_comparison_repeats_and_does_not_depend_on_the_number_of_processes(folders, evaluated, tmp_path, monkeypatch):
    monkeypatch.setenv("PAPERS_THREADS", "2")
    params, metrics, _ = evaluated
    assert evaluate(params, Inputs(folders), tmp_path, NullLog()) == metrics


def test_shares_of_projections_are_counted_by_seed():
    rows = [
        {"seed": s, "arm": arm, "layer": 0, "projection": p, "before": 1.0, "last": last, "selected": last}
        for s in (0, 1)
        for arm, values in (("wsvd_kv", (0.5, 1.5)), ("row_kv", (0.6, 1.4)))
        for p, last in zip(("k", "v"), values, strict=True)
    ]
    found = dropped(pd.DataFrame(rows))
    assert found["wsvd_kv.fisher_err_dropped.smollm2"] == 0.5
    assert found["wsvd_kv.below_row.smollm2"] == 0.5
    assert "row_kv.below_row.smollm2" not in found


def test_spectra_of_all_projections_serve_those_of_some(folders):
    from tasks.language_models.pretrained import load_model
    from tasks.low_rank.comparison import closed_form
    from tasks.low_rank.statistics import check_layers

    model, _ = load_model(folders["warmstart"] / "model", dtype="float32")
    layers = load_statistics(statistics_file(folders["train-calibrate"], 0))
    blocks = check_layers(model, layers)
    both = dict(closed_form({n: CELLS[n] for n in ("head_white", "head_white_kv")}, blocks, layers, lambda count: layers))
    alone = dict(closed_form({"head_white_kv": CELLS["head_white_kv"]}, blocks, layers, lambda count: layers))
    for key, found in alone["head_white_kv"].items():
        assert torch.equal(found.A, both["head_white_kv"][key].A)


def test_a_part_of_the_text_does_not_rank_triples_globally():
    with pytest.raises(ValueError, match="sequences = 4 needs allocation: uniform"):
        Cell(method="head_white", allocation="global", sequences=4)
