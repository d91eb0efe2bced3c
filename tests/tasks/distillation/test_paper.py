"""The paper as a whole on the smoke parameters: metrics declared, figures made, exact claims verified and their controls not."""

import math

import pytest

from flows.dataset_distillation import paper
from flows.engine.checks import NOT_REPRODUCED, SUFFIXES, VERIFIED, Evidence
from tasks.distillation.bellman_warmstart import BellmanStartParams
from tasks.distillation.regression_warmstart import RegressionStartParams

pytestmark = pytest.mark.xdist_group("distillation")


def test_every_metric_is_finite_and_declared_and_every_figure_is_made(smoke):
    metrics, figures, _ = smoke[0]
    for stage in paper.stages:
        reported = metrics.get(stage.name, {})
        assert all(math.isfinite(v) for v in reported.values())
        assert {name for name in reported if not name.endswith(SUFFIXES)} <= stage.metric_names()
    assert set(figures) == set(paper.figures)


def test_claims_find_their_metrics_and_the_exact_ones_hold_without_their_controls(smoke):
    evidence = Evidence({name: value for part in smoke[0][0].values() for name, value in part.items()})
    for claim in paper.claims:
        assert not (claim.check.metrics() - set(evidence)), claim.id
        if claim.id in ("quadratic_number_of_regressors", "additive_predictors_are_exact"):
            outcome = claim.check.judge(evidence)
            assert outcome.verdict == VERIFIED, outcome.text
            assert claim.control.against(claim.check).judge(evidence).verdict == NOT_REPRODUCED


@pytest.mark.parametrize("profile", ["cpu", "gpu", "smoke"])
def test_parameters_of_all_profiles_are_valid_and_agree_between_stages(profile, parameters):
    found = parameters(profile)
    for names, keys in (
        (("warmstart-supervised", "train-supervised", "evaluate-supervised"), RegressionStartParams.model_fields),
        (("warmstart-bellman", "train-bellman", "evaluate-bellman"), BellmanStartParams.model_fields),
    ):
        for key in keys:
            assert len({repr(getattr(found[name], key)) for name in names}) == 1, (key, names)
    assert found["train-bellman"].environments == found["prepare-transitions"].environments == found["train-additive"].environments
    assert found["train-bellman"].seeds == found["prepare-transitions"].seeds


def test_the_flow_is_made_on_demand_alone():
    import flows.dataset_distillation as module

    with pytest.raises(AttributeError, match="no attribute 'flux'"):
        _ = module.flux
