from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from test_problem import split

from tasks.common.node import NullLog
from tasks.gaussian_process.experiment import (
    Architecture,
    Outcome,
    TrainParams,
    groups,
    load_shared,
    read_warm,
    report,
    run_stage,
    set_items,
    shared_state,
    tables,
)
from tasks.gaussian_process.problem import stack_splits
from tasks.gaussian_process.training import Fit
from tasks.gaussian_process.warmstart import gaussian_model


def model(inducing: int = 6, seeds=(0, 1)):
    return gaussian_model(stack_splits([split(s) for s in seeds]), Architecture(inducing=inducing), list(seeds))


def fit(value: float = 1.0) -> Fit:
    elbo = np.arange(8.0).reshape(4, 2)
    return Fit(elbo, {"kl": np.array([value, 2.0])}, [(2, "rmse", np.array([3.0, 4.0])), (4, "rmse", np.array([1.0, 2.0]))], {})


def work(item: tuple[str, float]) -> Outcome:
    return Outcome(*tables(item[0], "concrete", [0, 1], fit(item[1])), {item[0]: 0.5})


def test_shared_state_moves_everything_but_the_posteriors():
    first, second = model(), model()
    for parameter in first.parameters():
        parameter.data += 1.0
    load_shared(second, shared_state(first))
    assert torch.equal(second.layers[0].z, first.layers[0].z)
    assert torch.equal(second.likelihood.log_variance, first.likelihood.log_variance)
    assert not torch.equal(second.posteriors[0].mean, first.posteriors[0].mean)


def test_state_of_another_architecture_is_refused():
    with pytest.raises(ValueError, match=r"does not fit the model: layers.0.z, layers.1.z differ"):
        load_shared(model(), shared_state(model(inducing=5)))


def test_warm_start_may_hold_more_seeds_but_not_fewer(tmp_path):
    from safetensors.torch import save_file

    state = shared_state(model(seeds=(0, 1)))
    save_file(state, tmp_path / "concrete.safetensors")
    assert torch.equal(read_warm(tmp_path, "concrete", 1)["layers.0.z"], state["layers.0.z"][:1])
    with pytest.raises(ValueError, match="holds 2 seeds, but 3 are asked for"):
        read_warm(tmp_path, "concrete", 3)
    with pytest.raises(FileNotFoundError, match="name 'boston' in the parameters of `warmstart`"):
        read_warm(tmp_path, "boston", 1)


def test_tables_by_hand():
    runs, curves = tables("dbvi", "concrete", [5, 6], fit())
    assert sorted(runs[runs["quantity"] == "elbo"]["value"]) == [3.0, 4.0]  # means over all four steps
    bound = curves[(curves["quantity"] == "elbo") & (curves["seed"] == 6)].sort_values("step")
    assert list(zip(bound["step"], bound["value"], strict=True)) == [(2, 2.0), (4, 6.0)]
    assert set(curves["seed"]) == {5, 6}


def test_stage_writes_sorted_tables_and_reports_means(tmp_path, monkeypatch):
    monkeypatch.setenv("PAPERS_THREADS", "1")  # `work` lives in this file, which other processes cannot import
    done = run_stage(work, [("b", 5.0), ("a", 1.0)], "cpu", tmp_path, NullLog())
    runs = pd.read_parquet(tmp_path / "runs.parquet")
    assert runs["arm"].tolist() == sorted(runs["arm"])
    assert report(done, ["a"]) == {k: v for k, v in report(done, ["a", "b"]).items() if k.startswith("fit_a.")}
    assert report(done, ["b"])["fit_b.kl.concrete"] == 3.5
    assert [(arm, q) for arm, _, q, _ in groups(runs)] == [("a", "elbo"), ("a", "kl"), ("b", "elbo"), ("b", "kl")]
    assert (tmp_path / "curves.parquet").is_file()


def test_longest_work_comes_first():
    params = TrainParams(data={"short": {"seeds": 1, "steps": 10}, "long": {"seeds": 9, "steps": 10}})
    assert [item.name for item in set_items(params, {"prepare": None, "warmstart": None})] == ["long", "short"]


@pytest.mark.parametrize(
    "options",
    [
        {"data": {}},
        {"data": {"concrete": {"seeds": 0}}},
        {"architecture": {"depth": 0}},
        {"architecture": {"inducing": 0}},
        {"device": "tpu"},
    ],
)
def test_impossible_parameters_are_refused(options):
    with pytest.raises(ValueError, match=r"least|greater|Input should be"):
        TrainParams(**options)
