from __future__ import annotations

import pytest
from attention_cases import qkv

from tasks.attention.cells import Case
from tasks.attention.recording import Recorded
from tasks.attention.tuning import GridParams, Tried, best_for, try_all, tune
from tasks.attention.vattention import VAttentionConfig


def cases(seed, n=300, layers=2):
    return [Case.of(Recorded(layer, *qkv(heads=4, groups=2, rows=4, n=n, seed=seed + layer))) for layer in range(layers)]


def test_the_grid_holds_every_combination():
    grid = GridParams(heavy=(0.01, 0.1), base=(0.05,), epsilon=(0.1, 0.2, 0.3), ends=3)
    found = list(grid.configs())
    assert len(found) == 6
    assert all(c.sink == c.window == 3 and c.delta == c.epsilon for c in found)
    assert len(set(found)) == 6


def test_reading_more_is_more_exact():
    prompts = [cases(0), cases(10)]
    configs = [VAttentionConfig(sink=2, window=2, heavy=heavy, base=0.1, adaptive=False) for heavy in (0.02, 0.2, 1.0)]
    tried = try_all(prompts, configs)
    assert [t.density for t in tried] == sorted(t.density for t in tried)
    assert [t.err_mean for t in tried] == sorted((t.err_mean for t in tried), reverse=True)
    assert tried[-1].density == 1.0
    assert tried[-1].err_mean < 1e-5


def test_a_target_takes_the_most_exact_that_fits():
    c = VAttentionConfig()
    tried = [Tried(c, 0.04, 0.3), Tried(c, 0.09, 0.25), Tried(c, 0.1019, 0.2), Tried(c, 0.11, 0.1)]
    chosen = tune(tried, {"10": 0.1, "05": 0.05, "20": 0.2, "01": 0.01})
    assert {name: t.err_mean for name, t in chosen.items()} == {"10": 0.2, "05": 0.3, "20": 0.1, "01": 0.3}
    assert best_for(tried, 0.1).density == pytest.approx(0.1019)


def test_a_worse_predictor_gives_a_larger_error():
    def inverted(layer, query, key, logits):
        return -logits

    configs = [VAttentionConfig(sink=2, window=2, heavy=0.1, base=0)]
    good, bad = (try_all([cases(0)], configs, predictor)[0].err_mean for predictor in (None, inverted))
    assert bad > 2 * good


def test_the_same_seed_gives_the_same_numbers():
    configs = [VAttentionConfig(sink=2, window=2, heavy=0.05, base=0.1)]
    one, two, other = (try_all([cases(0)], configs, seed=s)[0] for s in (1, 1, 2))
    assert one == two
    assert one.err_mean != other.err_mean
