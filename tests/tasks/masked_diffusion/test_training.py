from __future__ import annotations

import pytest
import torch

from tasks.common.node import Inputs, NullLog
from tasks.masked_diffusion import register_trace
from tasks.masked_diffusion.model import load_model
from tasks.masked_diffusion.pieces import load_text
from tasks.masked_diffusion.register_trace import ProgramParams, TraceTask
from tasks.masked_diffusion.training import PretrainParams, Work, operand_at, pretrain, train_model

TINY = {"width": 16, "layers": 1, "heads": 2, "hidden": 32, "batch": 16, "check": 64}


@pytest.fixture
def programs(tmp_path):
    folder = tmp_path / "prepare"
    folder.mkdir()
    register_trace.prepare(ProgramParams(task=TraceTask(steps=2), seeds=2, test=2, calibration=2), Inputs(), folder, NullLog())
    return folder


def test_training_lowers_the_loss(tmp_path):
    """Chance is log 5 / 2 + 0 a token once the delimiters are known: below it, digits have been read."""
    params = PretrainParams(**{**TINY, "width": 32}, steps=150, rate=5e-3)
    found = train_model(Work(0, TraceTask(steps=2, reset=1.0), params, tmp_path / "m"))
    assert found.losses.shape == (150,)
    assert found.losses[-20:].mean() < 0.6 * found.losses[:10].mean()
    assert 0 < found.accuracy <= 1


def test_models_are_those_of_their_seeds(tmp_path, programs):
    params = PretrainParams(**TINY, seeds=2, steps=4)
    metrics = {}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        metrics[name] = pretrain(params, Inputs({"prepare": programs}), tmp_path / name, NullLog())
    assert metrics["a"] == metrics["b"]
    first, again = (load_model(tmp_path / name / "model-0") for name in ("a", "b"))
    other = load_model(tmp_path / "a/model-1")
    assert torch.equal(first.head.weight, again.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)
    assert load_text(tmp_path / "a/model-0").encode("S=1#")


def test_the_loss_at_the_start_is_that_of_guessing(tmp_path):
    """An untrained model's loss a token is near log 20 = 3.0; suffixes are rounded up, which weighs N = 8 by E[ceil(8 t) / 8 t] = 1.27."""
    for share, weight in ((0.0, 1.0), (1.0, 1.27)):
        params = PretrainParams(**{**TINY, "check": 2000}, steps=1, rate=1e-9, suffix_share=share)
        found = train_model(Work(0, TraceTask(steps=4), params, tmp_path / str(share)))
        assert found.loss == pytest.approx(3.0 * weight, abs=0.4)


def test_frozen_prefixes_are_what_the_model_sees(tmp_path):
    """On the same programmes, masks and weights the loss is another one, all the more the larger the share; one layer cannot tell."""
    found = {}
    for layers in (1, 2):
        for share in (0.0, 0.5, 1.0):
            params = PretrainParams(**{**TINY, "layers": layers, "check": 500}, steps=1, rate=1e-9, frozen_share=share)
            found[layers, share] = train_model(Work(0, TraceTask(steps=4), params, tmp_path / f"{layers}-{share}")).loss
    assert found[1, 0.5] == found[1, 1.0] == pytest.approx(found[1, 0.0], rel=1e-6)  # masked positions read embeddings alone
    gaps = [abs(found[2, share] - found[2, 0.0]) for share in (0.5, 1.0)]
    assert 1e-5 < gaps[0] < gaps[1]


def test_operands_grow():
    assert [operand_at(p / 10, 1.0, 5) for p in range(10)] == [2, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert operand_at(0.0, 0.0, 5) is None
    assert operand_at(0.0, 0.5, 2) == 2


def test_more_models_than_programmes_are_refused(tmp_path, programs):
    with pytest.raises(ValueError, match="seeds is 3, but `prepare` made programmes for fewer"):
        pretrain(PretrainParams(**TINY, seeds=3, steps=1), Inputs({"prepare": programs}), tmp_path, NullLog())
