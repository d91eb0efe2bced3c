"""The attention function inside tiny random models of the architectures that the gpu profile and users run."""

from __future__ import annotations

import attention_stages as stages
import pytest
import torch
from attention_cases import generator

from tasks.attention import quality
from tasks.attention.registration import sparse_attention
from tasks.attention.vattention import VAttentionConfig

SIZES = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
}
MODELS = {
    "Llama": {},
    "Mistral": {"sliding_window": None},
    "Mistral with a window": {"sliding_window": 40},
    "Qwen2": {},
    "Gemma2": {"sliding_window": 40, "head_dim": 8, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
}


@pytest.mark.parametrize("name", MODELS)
def test_reading_everything_is_the_models_own_attention(name):
    import transformers

    kind = name.split()[0]
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **MODELS[name]}, attn_implementation="eager")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    ids = torch.randint(1, 64, (2, 90), generator=generator())
    mask = torch.ones_like(ids)
    mask[1, :20] = 0
    options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    own = model.generate(ids, **options)
    seen = []
    with sparse_attention(model, VAttentionConfig(heavy=1.0), observer=seen.append):
        assert torch.equal(model.generate(ids, **options), own)
    assert {o.layer for o in seen} == {0, 1}
    if "sliding_window" in MODELS[name] and MODELS[name]["sliding_window"]:
        assert min(int(o.valid.sum(-1).max()) for o in seen) <= 40
    with sparse_attention(model, VAttentionConfig(sink=4, window=4, heavy=4)):
        assert model.generate(ids, **options).shape == own.shape


def test_a_stage_can_run_another_model(pipeline, tmp_path):
    """As the gpu profile does: the model is named by the parameters, prompts come from a benchmark's files."""
    import json

    from tasks.common.node import Inputs, NullLog
    from tasks.language_models import benchmark_files

    root = pipeline[0]
    (tmp_path / "ruler/vt").mkdir(parents=True)
    lines = [json.dumps({"input": f"Read.\n{'a b ' * 30}\nWhich {i}?", "outputs": [f"{i}"], "answer_prefix": " It is"}) for i in range(2)]
    (tmp_path / "ruler/vt/validation.jsonl").write_text("\n".join(lines))
    (tmp_path / "prompts").mkdir()
    (tmp_path / "out").mkdir()
    model = str(root / "warmstart/model")
    files = {"ruler_r1": {"folder": tmp_path / "ruler", "tasks": ["vt"], "seeds": 2, "model": model}}
    prompts = benchmark_files.BenchmarkParams(sets={}, files=files)
    benchmark_files.prepare(prompts, Inputs(), tmp_path / "prompts", NullLog())
    given = {"data": "ruler_r1", "trained": "train-r1", "model": model, "accuracy_tasks": ("vt",)}
    params = quality.QualityParams(**given, dtype="float32", new_tokens=4)
    found = quality.evaluate(params, Inputs({"prepare": tmp_path / "prompts", "train-r1": root / "train"}), tmp_path / "out", NullLog())
    assert found["dense.density.ruler_r1"] == 1.0
    assert 0 <= found["vattention.em.ruler_r1"] <= 1


def test_the_gpu_profile_evaluates_each_model_with_what_was_calibrated_on_it():
    gpu = stages.SECTIONS["gpu"]
    assert gpu["evaluate"]["model"] == gpu["prepare"]["model"] == gpu["train"]["model"]
    for stage in ("evaluate-ruler-r1", "evaluate-aime-r1"):
        files, given = gpu["prepare"]["files"], quality.QualityParams(**gpu[stage])
        assert given.model == gpu[given.trained]["model"] == files[given.data]["model"] == files[gpu[given.trained]["data"]]["model"]
