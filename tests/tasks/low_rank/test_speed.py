from __future__ import annotations

import numpy as np
import pytest
from kept_log import KeptLog

from tasks.common.node import Inputs, NullLog
from tasks.low_rank import speed
from tasks.low_rank.speed import Arena, SpeedParams, decode_arms, evaluate, length_name

PARAMS = SpeedParams(
    lengths=(256, 384), heads=4, head_dim=16, ranks=(4, 8), shared_rank=20, rotary_rank=8, spread_mb=1, rounds=2, repeats=1
)
LATENT = ("per_head_4", "per_head_8", "shared_reread", "shared_once", "values_8", "rotary_8")


def test_every_arm_has_times_ratios_and_bytes(tmp_path):
    log = KeptLog()
    metrics = evaluate(PARAMS, Inputs(), tmp_path, log)
    for length in ("256", "384"):
        for arm in ("sdpa", "dense", *LATENT):
            assert metrics[f"{arm}.ms.{length}"] > 0
            assert metrics[f"{arm}.ms.{length}.n"] == 2
        for arm in LATENT:
            assert metrics[f"{arm}.speedup.{length}"] > 0
            assert metrics[f"{arm}.speedup_sdpa.{length}"] > 0
    assert "dense.speedup.256" not in metrics
    assert list(log.figures) == ["latency"]


def test_bytes_are_the_formulas():
    # 4 bytes x 256 slots x (keys and values) x numbers per slot that a step reads.
    arms, read = decode_arms(PARAMS, 256, np.random.default_rng(0))
    numbers = {
        "sdpa": 4 * 16,
        "dense": 4 * 16,
        "per_head_4": 4 * 4,
        "per_head_8": 4 * 8,
        "shared_reread": 4 * 20,
        "shared_once": 20,
        "values_8": 4 * (16 + 8) / 2,
        "rotary_8": 4 * 8,
    }
    assert read == {arm: 4.0 * 256 * 2 * count for arm, count in numbers.items()}
    assert set(arms) == set(read)


def test_arms_with_the_same_cache_give_the_same_result():
    params = PARAMS.model_copy(update={"lengths": (100,)})
    arms, _ = decode_arms(params, 100, np.random.default_rng(0))
    np.testing.assert_allclose(arms["dense"](), arms["sdpa"]()[:, :, 0].numpy(), atol=1e-5)
    for name, width in (("per_head_4", 4), ("per_head_8", 8), ("shared_reread", 20), ("shared_once", 20), ("values_8", 8), ("rotary_8", 8)):
        assert np.asarray(arms[name]()).shape == (1, 4, width)


def test_caches_start_at_cache_lines_and_do_not_overlap():
    memory = Arena(100, 2, np.random.default_rng(0))
    (first, copy), (second, _) = memory.draw(3, 7), memory.draw(5)
    kept = first.copy()
    assert np.array_equal(copy, kept)
    copy[:], second[:] = 1.0, 0.0
    assert np.array_equal(first, kept)
    assert [part.ctypes.data % 64 for part in (first, copy, second)] == [0, 0, 0]
    assert first.std() > 0.3
    with pytest.raises(ValueError, match="reshape"):
        memory.draw(1000)


def test_calls_take_the_caches_in_turn_whichever_arm_makes_them(monkeypatch):
    params = PARAMS.model_copy(update={"spread_mb": 4.0})
    # 256 slots x (4 heads x (2 x 16 + 2 x (4 + 8 + 8)) + 4 x 20) numbers, and the small ones: 0.38 MB, eleven of which make 4 MB
    assert speed.copies_of(params, 256) == 11
    assert speed.copies_of(params, 4096) == 3
    seen: list[int] = []
    monkeypatch.setattr(speed, "flash_decode", lambda q, K, V, **_: seen.append(K.ctypes.data))
    arms, _ = decode_arms(params, 256, np.random.default_rng(0))
    for _ in range(11):
        arms["dense"]()
    assert len(set(seen)) == 11  # every call another cache
    seen.clear()
    for _ in range(11):
        arms["dense"]()
        arms["per_head_4"]()
    assert len(set(seen)) == 22  # of 11 caches of either kind
    assert len(set(seen[::2])) == 11


def test_ratios_are_taken_within_a_round(tmp_path, monkeypatch):
    # In the second round the machine is ten times slower for all: the ratio does not notice.
    from tasks.language_models.timing import Rounds

    times = {"sdpa": [6.0, 60.0], "dense": [4.0, 40.0], "per_head_4": [2.0, 20.0]}
    monkeypatch.setattr(speed, "_measured", lambda item: (Rounds(times, 1, "process"), dict.fromkeys(times, 1e6)))
    metrics = evaluate(PARAMS.model_copy(update={"lengths": (256,)}), Inputs(), tmp_path, NullLog())
    assert metrics["per_head_4.speedup.256.lo"] == metrics["per_head_4.speedup.256.hi"] == 2.0
    assert metrics["per_head_4.speedup_sdpa.256"] == 3.0


def test_lengths_have_short_names():
    assert [length_name(n) for n in (256, 8192, 32768)] == ["256", "8k", "32k"]


def test_impossible_parameters_are_refused():
    with pytest.raises(ValueError, match="greater than or equal to 2"):
        SpeedParams(rounds=1)
    with pytest.raises(ValueError, match="multiple of 2"):
        SpeedParams(head_dim=15)
