from __future__ import annotations

import math

import pandas as pd
import pytest
import tiny_benchmarks
from diffusion_stages import PAPER, SECTIONS
from tiny_checkpoints import save_dream, save_llada, save_tokenizer

from flows.engine.checks import SUFFIXES
from tasks.common.assets import AssetMissing
from tasks.common.node import Inputs, NullLog
from tasks.masked_diffusion import benchmarks, real_models
from tasks.masked_diffusion.real_models import (
    RealCalibrationParams,
    RealCompareParams,
    calibrate,
    evaluate,
    folder_of,
    load_any,
    metrics_of,
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmarks")
    params = benchmarks.BenchmarkParams(files=tiny_benchmarks.write(folder), calibration=2)
    benchmarks.prepare(params, Inputs(), folder, NullLog())
    return folder


@pytest.mark.parametrize(("name", "save"), [("llada", save_llada), ("dream", save_dream)])
def test_both_nodes_on_a_tiny_checkpoint(tmp_path, prepared, name, save):
    folder = tmp_path / "model"
    vocabulary = save_tokenizer(folder, split=name == "dream")
    save(folder, vocabulary)
    common = {"model": str(folder), "name": name, "length": 16, "block": 4, "device": "cpu", "dtype": "float32"}
    grid = {"alpha": [0.25], "beta": [0.5], "tau_min": [1.0], "window": [4], "threshold": [0.9], "block": [4], "caches": ["prefix"]}
    tuned = tmp_path / f"train-{name}"
    tuned.mkdir()
    found = calibrate(RealCalibrationParams(**common, problems=2, grid=grid), Inputs({"prepare-benchmarks": prepared}), tuned, NullLog())
    assert set(found) <= PAPER.stage(f"train-{name}").metric_names("gpu")
    out = tmp_path / "out"
    out.mkdir()
    arms = ("quota", "quota_half", "threshold", "threshold_dual", "lsp", "literal", "scattered", "lsp_calibrated", "threshold_calibrated")
    params = RealCompareParams(**common, arms=arms, problems=2, parts=2)
    metrics = evaluate(params, Inputs({"prepare-benchmarks": prepared, f"train-{name}": tuned}), out, NullLog())
    assert all(math.isfinite(value) for value in metrics.values())
    base = {n for n in metrics if not n.endswith(SUFFIXES)}
    assert base <= PAPER.stage(f"evaluate-{name}").metric_names("gpu")
    assert metrics[f"quota.nfe.{name}_gsm8k"] <= 16
    assert metrics[f"lsp.runs.{name}_gsm8k"] == 1
    assert f"lsp.em.{name}_gsm8k" in metrics
    assert f"lsp.em.{name}_humaneval" not in metrics  # code is not run unless it is asked for
    answers = pd.read_parquet(out / "answers.parquet")
    assert len(answers) == len(arms) * 6
    claims = [claim for claim in PAPER.claims if any(f"{name}_gsm8k" in m for m in claim.check.metrics())]
    if name == "llada":
        assert len(claims) == 5


def test_shares_of_problems_make_the_interval():
    table = pd.DataFrame(
        [
            {"arm": arm, "benchmark": "gsm8k", "em": float(i % 3 == 0), "nfe": n, "token_forwards": n, "flip_rate": 0.0, "runs": 1}
            | {"attn_pairs": 1, "cache_writes": 0, "commit_mean": 1.0}
            for arm, n in (("lsp", 4), ("quota", 8))
            for i in range(6)
        ]
    )
    metrics = metrics_of(table, ["lsp", "quota"], "m", 2)
    assert metrics["lsp.nfe.m_gsm8k-quota.nfe.m_gsm8k"] == -4
    assert metrics["lsp.em.m_gsm8k"] == pytest.approx(1 / 3)
    assert metrics["lsp.em.m_gsm8k.n"] == 2
    with pytest.raises(ValueError, match="gsm8k has 6 problems, fewer than the 7 parts"):
        metrics_of(table, ["lsp"], "m", 7)


def test_missing_models_and_arms_are_refused(tmp_path, prepared, monkeypatch):
    def offline(*given, **options):
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(AssetMissing, match=r"GSAI-ML/LLaDA-8B-Instruct cannot be had \(OSError\); install it with: hf download"):
        folder_of("llada")
    save_tokenizer(tmp_path)
    save_llada(tmp_path, 300)
    (tmp_path / "chosen.json").write_text('{"0": {}}')
    params = RealCompareParams(model=str(tmp_path), arms=("best",), device="cpu")
    with pytest.raises(ValueError, match="unknown arm 'best'; known: lsp"):
        evaluate(params, Inputs({"prepare-benchmarks": prepared, "train-llada": tmp_path}), tmp_path, NullLog())
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="holds a model of type 'bert'; known: dream, llada, masked_diffusion"):
        load_any(tmp_path)


def test_the_gpu_sections_name_the_published_models():
    for name in real_models.PUBLISHED:
        assert RealCalibrationParams(**SECTIONS["gpu"][f"train-{name}"]).model == name
        assert RealCompareParams(**SECTIONS["gpu"][f"evaluate-{name}"]).name == name
    benchmarks.BenchmarkParams(**SECTIONS["gpu"]["prepare-benchmarks"])
