from __future__ import annotations

import attention_stages as stages
import numpy as np
import pandas as pd
import pytest
import torch
from attention_cases import generator

from tasks.attention.quality import MATCHED_TO, Watch
from tasks.attention.quality_report import metrics_of
from tasks.attention.registration import Observed
from tasks.attention.weighted import weighted_attention


def test_dense_attention_is_its_own_reference(pipeline):
    metrics = pipeline[1]["evaluate"]
    assert metrics["dense.density.quality"] == 1.0
    assert metrics["dense.kl.quality"] == 0.0
    assert metrics["dense.err_mean.quality"] < 1e-5
    assert abs(metrics["dense.dbias.quality"]) < 1e-6
    assert metrics["dense_sdpa.kl.quality"] < 0.05


def test_arms_with_a_fixed_budget_read_as_much_as_vattention(pipeline):
    root = pipeline[0]
    frame = pd.read_parquet(root / "evaluate/prompts.parquet")
    wide = frame.pivot(index=["seed", "prompt"], columns="arm", values="density")
    for name, like in MATCHED_TO.items():
        assert np.allclose(wide[name], wide[like], atol=0.01), name


def test_the_map_of_budgets_has_every_layer_and_head(pipeline):
    budgets = pd.read_parquet(pipeline[0] / "evaluate/density_by_head.parquet")
    assert budgets.shape == (2, 6)
    assert budgets.to_numpy().mean() == pytest.approx(pipeline[1]["evaluate"]["vattention.density.quality"], abs=0.01)


def test_a_watch_adds_up_the_layers_it_is_told_to(pipeline):
    watch = Watch(every=2)
    for layer in range(3):
        logits, values = torch.randn(1, 2, 4, 50, generator=generator(layer)), torch.randn(1, 1, 50, 3, generator=generator(9))
        weights = (torch.rand(1, 2, 4, 50, generator=generator(layer + 20)) < 0.5).float()
        valid = torch.ones(4, 50, dtype=torch.bool)
        watch(Observed(layer, 0, logits, valid, weights, values, weighted_attention(logits, weights, values)))
    assert len(watch.heads()) == 3
    assert len(watch.err) == 2
    assert watch.summary()["density"] == pytest.approx(0.5, abs=0.05)


def rows(**arms):
    """Two seeds of two prompts, with the given KL (a number per prompt) and exact match."""
    found = []
    for arm, (kl, em) in arms.items():
        for i in range(4):
            common = {"density": 0.1, "err_mean": 0.1, "err_q95": 0.2, "derr_mean": 0.01, "dbias": 0.0, "nll": 1.0}
            found.append({"seed": i // 2, "prompt": i % 2, "task": "niah_single", "arm": arm, "kl": kl[i], "em": em[i], **common})
    return pd.DataFrame(found)


def test_metrics_by_hand():
    ones, half = [1.0] * 4, [1.0, 0.0, 1.0, 0.0]
    frame = rows(
        dense=([0.0] * 4, ones),
        vattention=([0.1, 0.3, 0.2, 0.2], half),
        oracle_topk=([0.4] * 4, ones),
        sink_window=([2.0] * 4, [0.0] * 4),
        hybrid_fixed=([0.2] * 4, ones),
    )
    found = metrics_of(frame, ["niah_single"])
    assert found["vattention.kl.quality"] == pytest.approx(0.2)
    assert found["vattention.kl_over_topk.quality"] == pytest.approx(0.5)
    assert found["sink_window.kl_beyond_10x_vattention.quality"] == pytest.approx(0.0)
    assert found["vattention.em.quality-dense.em.quality"] == pytest.approx(-0.5)
    assert found["vattention.em.quality-sink_window.em.quality"] == pytest.approx(0.5)
    spread = np.std([0, -1, 0, -1], ddof=1) / 2
    assert found["vattention.em_diff_plus_2se.quality"] == pytest.approx(-0.5 + 2 * spread)
    assert found["vattention.kl.quality.n"] == 2.0


def test_other_tasks_do_not_count_for_accuracy():
    frame = rows(dense=([0.0] * 4, [1.0] * 4), oracle_topk=([0.1] * 4, [0.0] * 4), hybrid_fixed=([0.1] * 4, [0.0] * 4))
    frame = pd.concat([frame, rows(vattention=([0.1] * 4, [0.0] * 4))])
    assert not any(".em." in name for name in metrics_of(frame, ["vt"]))


def test_answers_can_be_decoded(pipeline):
    found = stages.run(pipeline[0], "evaluate", new_tokens=3, samples=2, temperature=0.6, extra=False)
    again = stages.run(pipeline[0], "evaluate", new_tokens=3, samples=2, temperature=0.6, extra=False)
    assert found == again
    assert 0 <= found["vattention.em.quality"] <= 1
    assert "magicpig.kl.quality" not in found
    stages.run(pipeline[0], "evaluate")
