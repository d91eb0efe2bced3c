"""A tiny Llama with random weights and a byte-level tokenizer of its own: the architecture of a real model, in milliseconds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pydantic import Field

from tasks.common.node import Params

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SENTENCES = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.",
    "One of the special magic numbers for the word in the text above is the answer to the question.",
    "Returns the array with the given shape and the type of the values; the axis along which the mean is computed.",
    "What is the value that was assigned to the variable? Which words occur most often in the text?",
)


class RandomLlamaParams(Params):
    """Size of the tiny model; three query heads share one key/value head, as in SmolLM2.

    Attributes:
        layers: transformer blocks.
        kv_heads: key/value heads; there are three times as many query heads.
        head_width: size of a head.
        hidden_factor: width of the feed-forward layer over that of the model.
        vocabulary: upper bound on the tokens, at least the 256 bytes and the special ones.
        positions: longest context.
        gain: standard deviation of the weights times the root of their fan-in; above 1, attention is not flat.
        seed: of the weights.
    """

    layers: int = Field(2, ge=1)
    kv_heads: int = Field(2, ge=1)
    head_width: int = Field(16, ge=2, multiple_of=2)
    hidden_factor: int = Field(2, ge=1)
    vocabulary: int = Field(512, ge=256 + len(SPECIAL))
    positions: int = Field(8192, ge=64)
    gain: float = Field(1.5, gt=0)
    seed: int = Field(0, ge=0)


def random_llama(params: RandomLlamaParams, folder: Path) -> None:
    """Write such a model in bfloat16, with its tokenizer, to `folder`; equal parameters give equal bytes."""
    import torch

    from tasks.language_models.smollm2 import save

    tokenizer = byte_tokenizer(params.vocabulary)
    save(random_model(params, len(tokenizer)).to(torch.bfloat16), tokenizer, folder, "random-llama")


def random_model(params: RandomLlamaParams, vocabulary: int) -> Any:
    """A `LlamaForCausalLM` whose weights come from a generator of its own."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    width = 3 * params.kv_heads * params.head_width
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=params.hidden_factor * width,
        num_hidden_layers=params.layers,
        num_attention_heads=3 * params.kv_heads,
        num_key_value_heads=params.kv_heads,
        head_dim=params.head_width,
        max_position_embeddings=params.positions,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are replaced at once
        model: Any = LlamaForCausalLM(config)
    draw = torch.Generator().manual_seed(params.seed)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            if weight.ndim >= 2:
                weight.normal_(0.0, params.gain / math.sqrt(weight.shape[1]), generator=draw)
            else:
                weight.fill_(1.0)
    return model.eval()


def byte_tokenizer(vocabulary: int = 512) -> Any:
    """A byte-level BPE tokenizer learned from a few fixed sentences, with the special tokens and the chat form of SmolLM2."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(SENTENCES, vocab_size=vocabulary, min_frequency=2, special_tokens=list(SPECIAL), show_progress=False)
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(
        tokenizer_object=bpe._tokenizer, unk_token=SPECIAL[0], bos_token=SPECIAL[1], eos_token=SPECIAL[2], pad_token=SPECIAL[2]
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
