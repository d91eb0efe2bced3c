from __future__ import annotations

import pytest
import torch

from tasks.common.node import Inputs, NullLog
from tasks.routing.checkpoints import load_model
from tasks.routing.datasets import SetParams
from tasks.routing.training import RouteParams
from tasks.routing.warm_starts import ModelParams, WarmStartParams, fresh_instances, warmstart

SMALL = ModelParams(width=8, heads=2, layers=1, hidden=16)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    from tasks.routing.datasets import PrepareParams, prepare

    root = tmp_path_factory.mktemp("prepared")
    prepare(PrepareParams(sets={"hard": SetParams(nodes=6, test=4, validation=6, labels=30)}), Inputs(), root, NullLog())
    return Inputs({"prepare": root})


@pytest.mark.parametrize("method", ["imitation", "penalty", "none"])
def test_weights_are_written_and_a_function_of_the_seed(prepared, tmp_path, method):
    def weights(name, seed):
        out = tmp_path / name
        out.mkdir()
        params = WarmStartParams(
            set="hard",
            method=method,
            model=SMALL,
            imitation={"updates": 3, "batch": 8},
            penalty=RouteParams(route="nobt", updates=2, batch=3, samples=3),
            seed=seed,
        )
        metrics = warmstart(params, prepared, out, NullLog())
        assert 0 <= metrics["warmstart.validation_infeas.hard"] <= 1
        return torch.cat([p.detach().flatten() for p in load_model(out / "model.safetensors", "tsptw").parameters()])

    a, b, c = weights("a", 1), weights("b", 1), weights("c", 2)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_an_unknown_set_is_named(prepared, tmp_path):
    with pytest.raises(ValueError, match="no set 'soft' was prepared; known: hard"):
        warmstart(WarmStartParams(set="soft", model=SMALL), prepared, tmp_path, NullLog())


def test_every_batch_is_fresh_and_a_function_of_the_seed():
    given = SetParams(nodes=5)
    a, b, c = fresh_instances(given, 0), fresh_instances(given, 0), fresh_instances(given, 1)
    first = a(3).locs
    assert torch.equal(first, b(3).locs)
    assert not torch.equal(first, a(3).locs)
    assert not torch.equal(first, c(3).locs)


def test_the_thread_count_is_put_back(prepared, tmp_path):
    before = torch.get_num_threads()
    with pytest.raises(ValueError):  # noqa: PT011
        warmstart(WarmStartParams(set="hard", model=ModelParams(width=9, heads=2)), prepared, tmp_path, NullLog())
    assert torch.get_num_threads() == before
