from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_cases import generator, qkv

from tasks.attention.cells import Case, Errors, measure, noisy_scores, quantile, selections
from tasks.attention.recording import Recorded
from tasks.attention.vattention import Vattention, VAttentionConfig, attend

CONFIG = VAttentionConfig(sink=3, window=3, heavy=5, base=0.1, epsilon=0.2)


@pytest.fixture(scope="module")
def cases():
    return [Case.of(Recorded(layer, *qkv(n=150, seed=layer))) for layer in (2, 5)]


def test_a_case_holds_exact_attention(cases):
    out, _ = attend(cases[0].recorded.query, cases[0].recorded.key, cases[0].recorded.value, VAttentionConfig(heavy=1.0), generator())
    assert torch.allclose(cases[0].exact.output, out, atol=1e-5)


def test_errors_are_those_of_the_layers_one_after_the_other(cases):
    both = measure(cases, Vattention(CONFIG), seed=1)
    alone = [measure([case], Vattention(CONFIG), seed=1) for case in cases]
    assert both.err.shape == (2, 4, 3)
    assert torch.equal(both.err, torch.cat([a.err for a in alone]))


def test_selections_are_what_is_measured(cases):
    density = torch.cat([s.read.sum(-1) / c.exact.counts for c, s in selections(cases, CONFIG, seed=1)])
    assert torch.equal(density, measure(cases, Vattention(CONFIG), seed=1).density)


def test_summaries_by_hand():
    errors = Errors(torch.tensor([[[0.1, 0.3]]]), torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[-0.2, 0.1]]]))
    assert errors.summary() == pytest.approx({"density": 0.2, "err_mean": 0.5, "err_q95": 0.95, "derr_mean": 0.15, "dbias": -0.05})
    assert errors.violations(0.15) == {"viol_d": 0.5, "viol_sdpa": 0.5}


def test_quantiles_are_numpys():
    values = torch.randn(7, 11, generator=generator())
    for q in (0.0, 0.3, 0.95, 1.0):
        assert quantile(values, q) == pytest.approx(np.quantile(values.double().numpy(), q))


def test_noise_spoils_a_ranking_by_degrees(cases):
    config = VAttentionConfig(sink=3, window=3, heavy=0.1, base=0)
    errors = [measure(cases, Vattention(config), 0, noisy_scores(level, 0)).err.mean().item() for level in (0.0, 1.0, 5.0)]
    assert errors[0] < errors[1] < errors[2]
    assert errors[0] == measure(cases, Vattention(config), 0).err.mean().item()
