from __future__ import annotations

import math

import routing_stages
import yaml

from flows.engine.checks import SUFFIXES
from flows.lmask import paper
from tasks.routing import arms, datasets, evaluation, references, warm_starts


def base_names(metrics):
    return {name for name in metrics if not name.endswith(SUFFIXES)}


def test_smoke_twice_gives_identical_metrics_whatever_the_pool(smoke, tmp_path, monkeypatch):
    monkeypatch.setenv("PAPERS_THREADS", "1")
    assert routing_stages.run(tmp_path) == smoke[1]


def test_metrics_are_finite_and_declared_stage_by_stage(smoke):
    for name, metrics in smoke[1].items():
        assert metrics
        assert all(math.isfinite(value) for value in metrics.values())
        assert base_names(metrics) <= paper.stage(name).metric_names("smoke")


def test_every_claim_can_be_judged_from_what_is_reported(smoke):
    reported = set().union(*(base_names(metrics) for metrics in smoke[1].values()))
    for claim in paper.claims:
        missing = claim.check.metrics() - reported
        assert {name for name in missing if "gap" not in name} == set(), claim.id


def test_figures_and_times_are_reported(smoke):
    _, _, log = smoke
    assert set(log.figures) == set(paper.figures)
    assert log.figures["infeasibility"].axes == 4
    assert {"warmstart_cpu_s", "lmask_cpu_s_per_seed", "pyvrp_hard_s_per_instance"} <= set(log.timings)
    assert any("lmask.length" in step for step in log.steps)


def test_the_parameters_of_all_profiles_are_valid_and_name_each_others_sets():
    sections = yaml.safe_load((routing_stages.Path(__file__).parents[3] / "params.yaml").read_text())["lmask"]
    for params in sections.values():
        sets = set(datasets.PrepareParams(**params["prepare"]).sets)
        solvers = references.ReferenceParams(**params["prepare-references"])
        assert {*solvers.pyvrp.sets, *solvers.ortools.sets} <= sets
        trained = {}
        for name in params["train"]:
            assert warm_starts.WarmStartParams(**params["warmstart"][name]).set == name
            trained[name] = set(arms.TrainParams(**params["train"][name]).arms)
            assert params["train"][name]["set"] == name
        for section in (key for key in params if key.startswith("evaluate")):
            for name, given in evaluation.EvaluateParams(**params[section]).sets.items():
                assert name in sets
                assert set(given.arms) <= trained[given.weights or name]
