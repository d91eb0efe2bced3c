from __future__ import annotations

import json

import pytest
from diffusion_twins import small_model
from tiny_checkpoints import save_dream, save_llada, save_tokenizer

from flows.engine.apply import apply
from tasks.masked_diffusion.application import DecodeParams, read_prompts, schedulers_of
from tasks.masked_diffusion.model import MaskedDiffusionTransformer, ModelConfig, save_model
from tasks.masked_diffusion.pieces import Pieces
from tasks.masked_diffusion.prefix_schedule import LspParams
from tasks.masked_diffusion.register_trace import EOS, MASK, TOKENS

TOOL = "tasks.masked_diffusion.application:decode_prompts"


def own_model(folder, positions=20):
    import torch

    config = ModelConfig(len(TOKENS), positions, width=16, layers=1, heads=2, hidden=16, mask_id=MASK, eos_id=EOS)
    save_model(folder, MaskedDiffusionTransformer(config, torch.Generator().manual_seed(0)))
    Pieces(TOKENS).save(folder)


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_model_of_the_pipeline(tmp_path):
    own_model(tmp_path / "model")
    (tmp_path / "prompts.txt").write_text("S=3+1#\n\nS=2#\n")
    out = tmp_path / "answers.jsonl"
    summary = apply(TOOL, DecodeParams(model=tmp_path / "model", prompts=tmp_path / "prompts.txt"), out)
    assert summary["prompts"] == 2
    assert summary["answer_tokens"] == 14  # 20 positions, the longest prompt has 6
    assert {row["scheduler"] for row in rows_of(out)} == {"quota", "threshold", "lsp"}
    for name in ("quota", "threshold", "lsp"):
        assert summary[f"{name}_tokens_per_s"] > 0
        assert summary[f"{name}_calls"] >= 1
    assert summary["lsp_calls"] <= summary["quota_calls"]
    assert 0 <= summary["lsp_answers_as_quota"] <= 1


@pytest.mark.parametrize("save", [save_llada, save_dream])
def test_published_layouts(tmp_path, save):
    folder = tmp_path / "model"
    save(folder, save_tokenizer(folder, split=save is save_dream))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "One; two"}\n')
    params = DecodeParams(model=folder, prompts=tmp_path / "prompts.jsonl", length=12, dtype="float32", compare=False)
    out = tmp_path / "out.jsonl"
    summary = apply(TOOL, params, out)
    (row,) = rows_of(out)
    assert row["prompt"] == "One; two"
    assert row["runs"] == 1
    assert summary["lsp_calls"] == row["calls"]
    assert "quota_calls" not in summary


def test_options_reach_the_scheduler(tmp_path):
    paths = {"model": tmp_path, "prompts": tmp_path}
    params = DecodeParams(**paths, literal=True, window=3, beta=1.0, stability=0, cache="none", block=5)
    found = schedulers_of(params, 12)
    assert found["lsp"] == LspParams(tau_min=None, window=3, beta=1.0, stability=0, cache="none")
    assert found["threshold"].block is None  # 12 is not divisible by 5
    assert schedulers_of(DecodeParams(**paths, block=4), 12)["threshold"].block == 4


def test_prompts_that_cannot_be_read_are_refused(tmp_path):
    empty, odd = tmp_path / "a.txt", tmp_path / "b.jsonl"
    empty.write_text("\n")
    with pytest.raises(ValueError, match=r"holds no prompts; write one per line"):
        read_prompts(empty)
    odd.write_text('{"prompt": "a"}\n{"text": "b"}\n')
    with pytest.raises(ValueError, match=r"line 2: expected a JSON object with a field `prompt`"):
        read_prompts(odd)


def test_answers_that_do_not_fit_are_refused(tmp_path):
    own_model(tmp_path / "model", positions=8)
    (tmp_path / "p.txt").write_text("S=3+1#\n")
    with pytest.raises(ValueError, match="the model has 8 positions; a prompt of 6 leaves 2 for the answer"):
        apply(TOOL, DecodeParams(model=tmp_path / "model", prompts=tmp_path / "p.txt", length=5), tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_programmes_of_another_length_than_the_models_are_refused(tmp_path):
    own_model(tmp_path / "model")
    (tmp_path / "model/task.json").write_text('{"steps": 3}')
    (tmp_path / "p.txt").write_text("S=3+1=2#\nS=3+1#\n")
    with pytest.raises(ValueError, match=r"prompt 2 has 6 tokens; this model was trained on programmes of 8 tokens \(3 steps\)"):
        apply(TOOL, DecodeParams(model=tmp_path / "model", prompts=tmp_path / "p.txt"), tmp_path / "o")


@pytest.mark.parametrize("prompt", ["+3+1-1#S", "S+3+1-1#", "S=3+7-1#", "S=3*1-1#", "S=3+1#-1", "S=31+-1#"])
def test_what_is_no_programme_of_the_models_law_is_refused(tmp_path, prompt):
    own_model(tmp_path / "model")
    (tmp_path / "model/task.json").write_text('{"steps": 3, "operations": "+-", "modulus": 5}')
    (tmp_path / "prompts.txt").write_text(f"S=3+1-1#\n{prompt}\n")
    with pytest.raises(ValueError, match=r"prompt 2 is .*; this model was trained on programmes like S, = and a digit"):
        apply(TOOL, DecodeParams(model=tmp_path / "model", prompts=tmp_path / "prompts.txt"), tmp_path / "out.jsonl")


def test_bytes_and_unknown_devices_are_refused(tmp_path):
    own_model(tmp_path / "model")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"bytes.txt is no text in UTF-8"):
        read_prompts(tmp_path / "bytes.txt")
    (tmp_path / "prompts.txt").write_text("S=3+1#\n")
    with pytest.raises(ValueError, match="device 'nowhere' cannot be used here"):
        apply(TOOL, DecodeParams(model=tmp_path / "model", prompts=tmp_path / "prompts.txt", device="nowhere"), tmp_path / "out.jsonl")


def test_a_folder_without_vocabulary_is_refused(tmp_path):
    save_model(tmp_path / "model", small_model())
    (tmp_path / "p.txt").write_text("S\n")
    with pytest.raises(FileNotFoundError, match=r"has no vocabulary\.json"):
        apply(TOOL, DecodeParams(model=tmp_path / "model", prompts=tmp_path / "p.txt"), tmp_path / "o")
