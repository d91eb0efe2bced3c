"""Tiny random folders in the layouts of LLaDA and Dream, and transformers' own models with the same weights."""

from __future__ import annotations

import json
from pathlib import Path

import torch

TEXTS = [
    "def add(a, b):\n    return a + b\n",
    "The answer is 42. #### 42",
    "Natalia sold 48 clips, and half as many in May.",
    "One; two: three!",
]


def save_tokenizer(folder: Path, *, split: bool = False) -> int:
    """A byte-level tokenizer trained on a few sentences; `split` writes vocab.json and merges.txt as Dream does. Returns its size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|endoftext|>", "<|mask|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    )
    folder.mkdir(parents=True, exist_ok=True)
    if split:
        inner.model.save(str(folder))
        about = {
            "tokenizer_class": "Qwen2Tokenizer",
            "eos_token": special[0],
            "pad_token": special[0],
            "additional_special_tokens": special[1:],
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(about))
    else:
        fast = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=special[0], pad_token=special[0], mask_token=special[1])
        fast.chat_template = "{% for m in messages %}Q: {{ m.content }}\nA:{% endfor %}"
        fast.save_pretrained(folder)
    return inner.get_vocab_size()


def save_llada(folder: Path, vocabulary: int = 40, seed: int = 0, mask_id: int = 1, shards: int = 2) -> torch.nn.Module:
    """A folder in LLaDA's layout; returns a `LlamaForCausalLM` with its weights."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    config = LlamaConfig(
        vocab_size=vocabulary, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 500_000.0}, **sizes
    )
    model = LlamaForCausalLM(config).eval()
    parts = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "q_proj",
        "self_attn.k_proj": "k_proj",
        "self_attn.v_proj": "v_proj",
        "self_attn.o_proj": "attn_out",
        "post_attention_layernorm": "ff_norm",
        "mlp.gate_proj": "ff_proj",
        "mlp.up_proj": "up_proj",
        "mlp.down_proj": "ff_out",
    }
    whole = {"model.embed_tokens": "wte", "model.norm": "ln_f", "lm_head": "ff_out"}
    state = {}
    for name, value in model.state_dict().items():
        stem = name.removesuffix(".weight")
        if stem in whole:
            ours = whole[stem]
        else:
            _, _, number, part = stem.split(".", 3)
            ours = f"blocks.{number}.{parts[part]}"
        state[f"model.transformer.{ours}.weight"] = value.clone().contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(state)
    for shard in range(shards):
        save_file({n: state[n] for n in names[shard::shards]}, folder / f"model-{shard + 1:05d}-of-{shards:05d}.safetensors")
    about = {
        "model_type": "llada",
        "d_model": 16,
        "n_heads": 4,
        "n_kv_heads": 4,
        "n_layers": 2,
        "mlp_hidden_size": 24,
        "embedding_size": vocabulary,
        "vocab_size": vocabulary,
        "rope_theta": 500_000.0,
        "rms_norm_eps": 1e-5,
        "block_type": "llama",
        "activation_type": "silu",
        "layer_norm_type": "rms",
        "rope": True,
        "weight_tying": False,
        "mask_token_id": mask_id,
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(about))
    return model


def save_dream(folder: Path, vocabulary: int = 40, seed: int = 0, mask_id: int = 1) -> torch.nn.Module:
    """A folder in Dream's layout; returns a `Qwen2ForCausalLM` with its weights."""
    from safetensors.torch import save_file
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen2Config(
        vocab_size=vocabulary, rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0}, **sizes
    )
    model = Qwen2ForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({n: v.clone().contiguous() for n, v in model.state_dict().items()}, folder / "model.safetensors")
    about = {
        "model_type": "Dream",
        "vocab_size": vocabulary,
        "rope_theta": 1_000_000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "mask_token_id": mask_id,
        "eos_token_id": 0,
        **sizes,
    }
    (folder / "config.json").write_text(json.dumps(about))
    return model


def bidirectional_logits(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    """transformers' logits (L, V) when nothing is masked from attention."""
    with torch.no_grad():
        return model(torch.tensor([tokens]), attention_mask=torch.zeros(1, 1, len(tokens), len(tokens)), use_cache=False).logits[0]
