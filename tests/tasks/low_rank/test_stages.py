"""The stages on a tiny random model: what they write, that they repeat, and what they refuse."""

import pandas as pd
import pytest
import torch

from tasks.common.node import Inputs, NullLog
from tasks.language_models.smollm2 import SmolLM2Params
from tasks.language_models.smollm2 import prepare as prepare_model
from tasks.low_rank.calibration import CalibrateParams, calibrate, statistics_file
from tasks.low_rank.checkpoints import load_factors
from tasks.low_rank.comparison import Cell, EvaluateParams, dropped, evaluate
from tasks.low_rank.prepared import PrepareParams, beginnings, prepare, sequences
from tasks.low_rank.statistics import load_statistics
from tasks.low_rank.train import Arm, TrainParams, arm_weights, factors_file, train

ARMS = {
    "wsvd_kv": Arm(steps=6, keep_every=3),
    "row_kv": Arm(weighting="row", steps=6, keep_every=3),
    "unweighted_kv": Arm(weighting="none", steps=6, keep_every=3),
    "wsvd_r50": Arm(projections=("q", "k", "v"), allocation="global", steps=4, keep_every=2),
}
CELLS = {
    "svd": Cell(method="svd"),
    "diagonal": Cell(method="diagonal"),
    "permuted": Cell(method="permuted"),
    "qsvd_global": Cell(method="qsvd", allocation="global"),
    "qsvd_same_cache": Cell(method="qsvd", rank=20),
    "head_white": Cell(method="head_white", kept=(0.5, 0.8)),
    "head_white_kv": Cell(method="head_white", projections=("k", "v")),
    "head_white_2_kv": Cell(method="head_white", projections=("k", "v"), sequences=2),
    "head_white_all_kv": Cell(method="head_white", projections=("k", "v"), sequences=4),
}


class Kept(NullLog):
    def __init__(self) -> None:
        self.figures: list[str] = []

    def figure(self, name: str, figure: object) -> None:
        self.figures.append(name)
        super().figure(name, figure)


@pytest.fixture(scope="module", autouse=True)
def one_process():
    """Processes take seconds to start; `test_comparison_repeats...` starts some."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PAPERS_THREADS", "1")
    yield
    patch.undo()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("wsvd")
    made = {name: root / name for name in ("warmstart", "prepare", "train-calibrate", "train", "evaluate")}
    for folder in made.values():
        folder.mkdir()
    prepare_model(SmolLM2Params(source="random"), Inputs(), made["warmstart"], NullLog())
    prepare(PrepareParams(seeds=2, calibration=4, held_out=2, evaluation=3, tokens=24), Inputs(made), made["prepare"], NullLog())
    calibrate(CalibrateParams(seeds=2, batch=2), Inputs(made), made["train-calibrate"], NullLog())
    return made


@pytest.fixture(scope="module")
def trained(folders):
    return train(TrainParams(seeds=2, arms=ARMS), Inputs(folders), folders["train"], NullLog())


@pytest.fixture(scope="module")
def evaluated(folders, trained):
    params = EvaluateParams(
        seeds=2, cells=CELLS, tuned=("wsvd_kv", "wsvd_r50"), last=("wsvd_kv", "row_kv"), pairs=(("wsvd_kv", "head_white_kv"),)
    )
    log = Kept()
    return params, evaluate(params, Inputs(folders), folders["evaluate"], log), log.figures


def test_texts_differ_between_seeds_and_sides_and_repeat(folders, tmp_path):
    parts = [sequences(folders["prepare"], seed, part) for seed in (0, 1) for part in ("calibration", "held_out", "evaluation")]
    assert [tuple(p.shape) for p in parts] == [(4, 24), (2, 24), (3, 24)] * 2
    rows = {tuple(row.tolist()) for part in parts for row in part}
    assert len(rows) == 18
    again = prepare(PrepareParams(seeds=2, calibration=4, held_out=2, evaluation=3, tokens=24), Inputs(folders), tmp_path, NullLog())
    assert again["texts.sequences"] == 18
    assert (tmp_path / "sequences.safetensors").read_bytes() == (folders["prepare"] / "sequences.safetensors").read_bytes()


def test_seeds_that_were_not_prepared_are_named(folders):
    with pytest.raises(ValueError, match="sequences = 4 needs allocation: uniform"):
        Cell(method="head_white", allocation="global", sequences=4)
    with pytest.raises(KeyError, match="seed 7"):
        sequences(folders["prepare"], 7, "calibration")


def test_too_much_text_is_refused(folders, monkeypatch):
    from transformers import AutoTokenizer

    monkeypatch.setattr("tasks.low_rank.prepared.documents", lambda seed, side: iter(["short", "a text that is long enough"]))
    tokenizer = AutoTokenizer.from_pretrained(folders["warmstart"] / "model")
    with pytest.raises(ValueError, match=r"only 1 files for calibration hold 9 tokens of docstrings, not 2"):
        beginnings(tokenizer, 2, 9, 0, "calibration")


def test_calibration_writes_statistics_with_importances_and_repeats(folders, tmp_path):
    metrics = calibrate(CalibrateParams(seeds=2, batch=2), Inputs(folders), tmp_path, NullLog())
    again = statistics_file(tmp_path, 1).read_bytes()
    assert again == statistics_file(folders["train-calibrate"], 1).read_bytes()
    layers = load_statistics(statistics_file(tmp_path, 1))
    assert set(layers[0].importance) == {"q", "k", "v", "qkv"}
    assert set(layers[0].fisher_rotated) == {"k", "v"}
    assert metrics["fisher.tail.k.n"] == 2
    assert metrics["fisher.tail.k"] > 1


def test_training_writes_factors_of_every_arm_and_repeats(folders, trained, tmp_path):
    again = train(TrainParams(seeds=2, arms=ARMS), Inputs(folders), tmp_path, NullLog())
    assert again == trained
    for arm, settings in ARMS.items():
        for iterate in ("selected", "last"):
            factors = load_factors(factors_file(tmp_path, arm, 1, iterate))
            assert {p for _, p in factors} == set(settings.projections)
    assert set(trained) >= {f"fit_{arm}.selected_step.smollm2" for arm in ARMS}
    errors = pd.read_parquet(folders["train"] / "errors.parquet")
    assert (errors[errors.arm == "wsvd_kv"]["selected"] <= errors[errors.arm == "wsvd_kv"]["before"] * (1 + 1e-6)).all()


def test_global_ranks_differ_and_spend_what_uniform_ones_would(folders, trained):
    factors = load_factors(factors_file(folders["train"], "wsvd_r50", 0))
    for p in ("q", "k", "v"):
        ranks = [rank for (_, name), found in factors.items() if name == p for rank in found.ranks]
        assert len(set(ranks)) > 1
        assert sum(ranks) == 6 * len(ranks)  # floor(0.5 * 16 / (1 + 16/96))


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


def test_shuffled_weights_are_the_same_numbers_elsewhere(folders):
    layers = load_statistics(statistics_file(folders["train-calibrate"], 0))
    plain = arm_weights(Arm(), layers, 0, 1, "k")
    moved = arm_weights(Arm(weighting="shuffled"), layers, 0, 1, "k")
    assert torch.equal(plain.flatten().sort().values, moved.flatten().sort().values)
    assert not torch.equal(plain, moved)
    assert torch.equal(moved, arm_weights(Arm(weighting="shuffled"), layers, 0, 1, "k"))


def test_statistics_of_another_model_are_refused(folders, tmp_path):
    from tasks.language_models.pretrained import load_model
    from tasks.low_rank.statistics import check_layers

    model, _ = load_model(folders["warmstart"] / "model", dtype="float32")
    layers = load_statistics(statistics_file(folders["train-calibrate"], 0))
    with pytest.raises(ValueError, match="calibrate this model"):
        check_layers(model, layers[:1])


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
