"""All stages of the paper on the smoke parameters: deterministic, every metric declared, exact claims verified, controls not."""

import importlib
import math
import typing
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

from flows.dataset_distillation import paper
from flows.engine.checks import NOT_REPRODUCED, SUFFIXES, VERIFIED, Evidence
from tasks.common.node import Inputs, NullLog
from tasks.distillation.additive_matching import AdditiveParams
from tasks.distillation.bellman_matching import BellmanMatchingParams, TransitionSet, read_transition_sets, write_transition_sets
from tasks.distillation.bellman_report import BellmanReportParams
from tasks.distillation.bellman_warmstart import BellmanStartParams, bank_for
from tasks.distillation.regression_sets import RegressionSet, read_sets, write_sets
from tasks.distillation.regression_warmstart import RegressionStartParams
from tasks.distillation.threshold_law import smallest_sufficient
from tasks.offline_rl.transitions import TdBatch

ROOT = Path(__file__).parents[3]
SECTIONS = YAML(typ="safe").load((ROOT / "params.yaml").read_text())["dataset_distillation"]


class Figures(NullLog):
    def __init__(self):
        self.names = []

    def figure(self, name, figure):
        self.names.append(name)
        super().figure(name, figure)


def stages(profile):
    """(stage, node, parameters) in an order that respects the needs."""
    for kind in ("prepare", "warmstart", "train", "evaluate"):
        for stage in paper.stages:
            if stage.kind == kind and profile in stage.profiles:
                module, _, function = stage.node.partition(":")
                node = getattr(importlib.import_module(module), function)
                section = SECTIONS[profile][kind][stage.name.split("-", 1)[1]]
                yield stage, node, typing.get_type_hints(node)["params"](**section)


def run(folder):
    log, metrics = Figures(), {}
    for stage, node, params in stages("smoke"):
        out = folder / stage.name
        out.mkdir()
        metrics[stage.name] = node(params, Inputs({need: folder / need for need in stage.needs}), out, log)
    return metrics, log.names


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAPERS_THREADS", "1")
        first = run(tmp_path_factory.mktemp("first"))
        patch.setenv("PAPERS_THREADS", "2")
        second = run(tmp_path_factory.mktemp("second"))
    return first, second


@pytest.mark.filterwarnings("ignore:.*rank:UserWarning")
def test_metrics_do_not_depend_on_the_run_or_on_the_number_of_processes(smoke):
    (first, _), (second, _) = smoke
    assert first == second


@pytest.mark.filterwarnings("ignore:.*rank:UserWarning")
def test_every_metric_is_finite_and_declared_and_every_figure_is_made(smoke):
    (metrics, figures), _ = smoke
    for stage in paper.stages:
        reported = metrics.get(stage.name, {})
        assert all(math.isfinite(v) for v in reported.values())
        assert {name for name in reported if not name.endswith(SUFFIXES)} <= stage.metric_names()
    assert set(figures) == set(paper.figures)


@pytest.mark.filterwarnings("ignore:.*rank:UserWarning")
def test_claims_find_their_metrics_and_the_exact_ones_hold_without_their_controls(smoke):
    (metrics, _), _ = smoke
    evidence = Evidence({name: value for part in metrics.values() for name, value in part.items()})
    for claim in paper.claims:
        assert not (claim.check.metrics() - set(evidence)), claim.id
        outcome = claim.check.judge(evidence)
        if claim.id in ("quadratic_number_of_regressors", "additive_predictors_are_exact"):
            assert outcome.verdict == VERIFIED, outcome.text
            assert claim.control.against(claim.check).judge(evidence).verdict == NOT_REPRODUCED


@pytest.mark.parametrize("profile", ["cpu", "gpu", "smoke"])
def test_parameters_of_all_profiles_are_valid_and_agree_between_stages(profile):
    found = {stage.name: params for stage, _, params in stages(profile)}
    for names, keys in (
        (("warmstart-supervised", "train-supervised", "evaluate-supervised"), RegressionStartParams.model_fields),
        (("warmstart-bellman", "train-bellman", "evaluate-bellman"), BellmanStartParams.model_fields),
    ):
        for key in keys:
            assert len({repr(getattr(found[name], key)) for name in names}) == 1, (key, names)
    assert found["train-bellman"].environments == found["prepare-transitions"].environments == found["train-additive"].environments
    assert found["train-bellman"].seeds == found["prepare-transitions"].seeds


def test_regression_sets_survive_a_round_trip(tmp_path):
    rows = np.arange(6.0).reshape(2, 3)
    write_sets(tmp_path / "a.parquet", [RegressionSet("t", 1, "rand", 2, rows, 0.5, 0.25)])
    again = read_sets(tmp_path / "a.parquet")["t", 1, "rand", 2]
    np.testing.assert_array_equal(again.rows, rows)
    assert (again.start, again.end) == (0.5, 0.25)


def test_transition_sets_survive_a_round_trip(tmp_path):
    batch = TdBatch(np.ones((2, 3)), np.array([0, 1]), np.zeros(2), np.zeros((2, 3)), np.array([0.5, 1.0]))
    write_transition_sets(tmp_path / "a.parquet", [TransitionSet("cartpole", 3, "syn", batch, 1.0, 0.5)])
    (again,) = read_transition_sets(tmp_path / "a.parquet")
    assert (again.environment, again.seed, again.arm, again.end) == ("cartpole", 3, "syn", 0.5)
    for column, other in zip(again.batch, batch, strict=True):
        np.testing.assert_array_equal(column, other)


def test_banks_are_the_same_however_often_they_are_drawn():
    params = BellmanStartParams(predictors=5, heldout=4)
    rng = np.random.default_rng(0)
    batch = TdBatch(rng.standard_normal((9, 4)), np.zeros(9, int), rng.standard_normal(9), np.zeros((9, 4)), np.ones(9))

    def coefficients(name, seed=0, k=None):
        return bank_for(params, name, "cartpole", seed, batch, k).coefficients.numpy()

    np.testing.assert_array_equal(coefficients("rff"), coefficients("rff"))
    np.testing.assert_array_equal(coefficients("rff")[..., :3], coefficients("rff", k=3))
    np.testing.assert_array_equal(coefficients("rff"), coefficients("no_terminals"))
    assert not np.array_equal(coefficients("rff"), coefficients("rff", seed=1))
    assert coefficients("heldout").shape == (2, 65, 4)
    assert not np.array_equal(coefficients("rff")[..., :4], coefficients("heldout"))
    with pytest.raises(ValueError, match="holds 5 predictors, asked for 6"):
        coefficients("rff", k=6)


def test_too_few_rows_have_no_sufficient_number_of_regressors():
    rows = np.random.default_rng(0).standard_normal((50, 4))
    with (
        pytest.warns(UserWarning, match="will not match exactly"),
        pytest.raises(ValueError, match="use at least q rows"),
    ):
        smallest_sufficient(rows, rows[:2], np.random.default_rng(0), 1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RegressionStartParams(trials=0), "greater than or equal to 1"),
        (lambda: AdditiveParams(size=0), "greater than or equal to 1"),
        (lambda: BellmanStartParams(banks={"rff": {}}), "must include one called 'heldout'"),
        (lambda: BellmanMatchingParams(arms={"a": {"bank": "splines"}}), "asks for bank 'splines'"),
        (lambda: BellmanMatchingParams(arms={"a": {"k": 2000}}), "asks for 2000 predictors; its bank 'rff' holds 1000"),
        (lambda: BellmanMatchingParams(arms={"a": {"sizes": [7]}}), r"asks for sizes \[7\]"),
        (lambda: BellmanReportParams(learners={"a": {"sizes": [7]}}), r"asks for sizes \[7\]"),
        (lambda: BellmanReportParams(temperature=1), "Extra inputs"),
    ],
)
def test_impossible_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_flow_is_made_on_demand_alone():
    import flows.dataset_distillation as module

    with pytest.raises(AttributeError, match="no attribute 'flux'"):
        _ = module.flux
