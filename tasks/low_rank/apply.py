"""`papers apply wsvd`: compress the keys and values of a transformers model folder, and say what that costs and brings.

The same calibration, factorisation, fine-tuning and selection as in the stages, on text of one's own or on documentation that is installed
anyway. The result is a folder that `tasks.low_rank.checkpoints.load_compressed` reads.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import nn

from tasks.common.node import Log, Params
from tasks.language_models.cache import KeyValueCache
from tasks.language_models.pretrained import check_length, load_model
from tasks.language_models.timing import interleaved
from tasks.low_rank.attention import AttentionBlock, attention_blocks
from tasks.low_rank.calibration import text_batches
from tasks.low_rank.checkpoints import NOTE, save_compressed
from tasks.low_rank.heads import head_rank
from tasks.low_rank.latent_attention import KeyCache, cache_latents
from tasks.low_rank.layers import install
from tasks.low_rank.measurement import Reference
from tasks.low_rank.methods import ModelFactors, cache_ratio, parameter_ratio
from tasks.low_rank.prepared import beginnings
from tasks.low_rank.selection import select, tune_model
from tasks.low_rank.statistics import calibrate
from tasks.low_rank.train import Arm, arm_weights, start_of
from tasks.training.devices import PresentDevice


class CompressParams(Params):
    """Options of the tool."""

    model: Path = Field(description="folder of a transformers decoder model (Llama, Mistral or Qwen2) with its tokenizer")
    rank: int | None = Field(None, ge=1, description="rank of every key and value head; in place of --kept")
    kept: float = Field(0.5, gt=0, description="share of the parameters of keys and values that is kept")
    queries: bool = Field(False, description="factorise queries too, which saves parameters but no cache")
    text: Path | None = Field(None, description="UTF-8 text file to calibrate and judge on; default: documentation of installed packages")
    calibration: int = Field(24, ge=1, description="calibration sequences")
    held_out: int = Field(8, ge=1, description="calibration sequences that choose the iterate")
    evaluation: int = Field(16, ge=1, description="sequences on which quality is reported")
    tokens: int = Field(96, ge=8, description="length of a sequence")
    steps: int = Field(100, ge=0, description="fine-tuning steps; 0 for the closed form alone")
    rate: float = Field(1e-3, gt=0, description="rate of Adam; the paper uses 1e-4 on models of 7 billion parameters")
    cache: Literal["whole", "latent"] = Field(
        "whole", description="how decoding is timed: keys cached whole beside value latents (quick), or latents of both (small)"
    )
    context: int = Field(1024, ge=1, description="tokens in the cache when decoding is timed")
    batch: int = Field(1, ge=1, description="rows decoded at once when decoding is timed")
    dtype: Literal["bfloat16", "float32", "float16"] = Field(
        "bfloat16", description="type in which quality and speed are measured and saved"
    )
    seed: int = Field(0, ge=0, description="seed of the draw of text")
    device: PresentDevice = Field("cpu", description="where to run: cpu, cuda, cuda:1")

    @model_validator(mode="after")
    def _one_size(self) -> CompressParams:
        if self.rank is not None and "kept" in self.model_fields_set:
            raise ValueError(f"give rank or kept, not both; got rank {self.rank} and kept {self.kept}")
        return self


def compress(params: CompressParams, out: Path, log: Log) -> dict[str, float | int | str]:
    """Compress the attention projections of a language model by Fisher-weighted low-rank factors per head.

    Args:
        params: model and settings.
        out: folder to write.
        log: progress and messages.

    Returns:
        ratios of parameters and cache, perplexity and divergence, milliseconds and cache bytes per token, before and after.

    Raises:
        FileNotFoundError: if the folder or the text is missing.
        ValueError: for a model whose attention cannot be factorised, too little text, or impossible sizes.
    """
    begun = time.perf_counter()
    if (params.model / NOTE).is_file():
        raise ValueError(f"{params.model} is compressed already; give the folder of the dense model")
    dense, tokenizer = load_model(params.model, dtype="float32", device=params.device)
    check_length(dense, max(params.tokens, params.context + 1))
    blocks = attention_blocks(dense)
    texts = _texts(params, tokenizer)
    arm = _arm(params, blocks[0])
    log.message(f"calibrating {len(blocks)} layers on {len(texts.calibration)} sequences of {params.tokens} tokens")
    watched = lambda items: log.progress(items, total=-(-params.calibration // 4), desc="calibration")  # noqa: E731
    statistics = calibrate(dense, text_batches(texts.calibration, 4, params.device), watch=watched)
    start = start_of(arm, blocks, statistics, {})
    tuned = tune_model(blocks, start, lambda layer, p: arm_weights(arm, statistics, 0, layer, p), steps=arm.steps, rate=arm.rate)
    dense = dense.to(getattr(torch, params.dtype))
    step, curve = select(tuned, dense, Reference.of(dense, texts.held_out))
    factors = tuned.factors(step, best=True)
    log.message(f"step {step} of {arm.steps} diverges least on held-out text ({curve[step]:.3f} nats; closed form {curve[0]:.3f})")

    compressed = with_factors(dense, factors)
    reference = Reference.of(dense, texts.evaluation)
    quality, closed = reference.quality(compressed), reference.quality_with(dense, start)
    summary: dict[str, float | int | str] = {
        "rank": max(max(f.ranks) for f in factors.values()),  # type: ignore[union-attr]
        "parameters_kept_of_projections": parameter_ratio(factors, blocks),
        "cache_kept": cache_ratio(factors, blocks),
        "fine_tuning_step": step,
        "perplexity_before": reference.quality(dense).perplexity,
        "perplexity_after": quality.perplexity,
        "kl_nats_per_token": quality.kl_nats,
        "kl_nats_without_fine_tuning": closed.kl_nats,
    }
    save_compressed(compressed, out, tokenizer, method="wsvd", measured=dict(summary))
    summary |= decode_speed(dense, compressed, texts.evaluation, params)
    return summary | {"seconds": time.perf_counter() - begun}


@dataclass(frozen=True)
class _Texts:
    calibration: torch.Tensor
    held_out: torch.Tensor
    evaluation: torch.Tensor


def _texts(params: CompressParams, tokenizer: Any) -> _Texts:
    wanted = (params.calibration, params.held_out, params.evaluation)
    if params.text is None:
        first = beginnings(tokenizer, params.calibration + params.held_out, params.tokens, params.seed, "calibration")
        found = torch.cat([first, beginnings(tokenizer, params.evaluation, params.tokens, params.seed, "evaluation")])
    else:
        if params.text.is_dir():
            raise ValueError(f"{params.text} is a folder; give one text file")
        try:
            text = params.text.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{params.text} is no UTF-8 text ({error.reason} at byte {error.start}); give plain text") from error
        ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        pieces = len(ids) // params.tokens
        if pieces < sum(wanted):
            raise ValueError(f"{params.text} holds {pieces} sequences of {params.tokens} tokens, {sum(wanted)} are needed; give more text")
        cut = torch.tensor(ids[: pieces * params.tokens]).reshape(pieces, params.tokens)
        # Evaluation comes from the end of the file, calibration from before it, so that neighbours are not on both sides.
        order = torch.randperm(pieces - params.evaluation, generator=torch.Generator().manual_seed(params.seed))
        found = torch.cat([cut[order[: sum(wanted[:2])]], cut[pieces - params.evaluation :]])
    parts = torch.split(found.to(params.device), list(wanted))
    return _Texts(parts[0], parts[1], parts[2])


def _arm(params: CompressParams, block: AttentionBlock) -> Arm:
    kept = params.kept if params.rank is None else (1 + block.head_dim / block.hidden) * min(params.rank, block.head_dim) / block.head_dim
    if params.rank is not None and params.rank > block.head_dim:
        raise ValueError(f"rank must be at most the head dimension {block.head_dim}, got {params.rank}")
    head_rank(kept, block.hidden, block.head_dim)  # refuses an impossible share before minutes of calibration
    return Arm(projections=("q", "k", "v") if params.queries else ("k", "v"), kept=kept, steps=params.steps, rate=params.rate)


def with_factors(dense: nn.Module, factors: ModelFactors) -> nn.Module:
    """A model with factors in place, sharing every other weight with the dense one."""
    shared = {id(tensor): tensor for tensor in (*dense.parameters(), *dense.buffers())}
    twin: nn.Module = copy.deepcopy(dense, shared)
    install(twin, factors)
    return twin


def decode_speed(
    dense: nn.Module, compressed: nn.Module, ids: torch.Tensor, params: CompressParams, rounds: int = 5
) -> dict[str, float | int | str]:
    """Milliseconds per decoding step of both models side by side at one cache length, and bytes of cache per token."""
    keys: KeyCache = params.cache
    window = getattr(dense.config, "sliding_window", None)
    if window is not None and params.context + 1 >= window:
        return {"decoding": f"not timed: a cache of {params.context} tokens slides over a window of {window}; give a shorter context"}
    cached = copy.deepcopy(compressed, {id(t): t for t in (*compressed.parameters(), *compressed.buffers())})
    try:
        cache_latents(cached, keys)
    except ValueError as error:
        return {"decoding": f"not timed: {error}"}
    context = ids.flatten().repeat(-(-params.context // ids.numel()))[: params.context]
    rows = context.repeat(params.batch, 1)
    arms, stored = {}, {}
    for name, model in (("before", dense), ("after", cached)):
        cache = KeyValueCache(model)
        cache.append(rows)
        stored[name] = sum(part.element_size() * part[0].numel() for i in range(cache.layers) for part in cache.layer(i)) / params.context
        arms[name] = _Step(cache, rows[:, :1], params.context)
    found = interleaved(arms, rounds=rounds, device=params.device)
    ratios = found.ratios("before", "after")
    return {
        "decode_ms_before": found.median("before"),
        "decode_ms_after": found.median("after"),
        "decode_speedup": sorted(ratios)[len(ratios) // 2],
        "cache_bytes_per_token_before": stored["before"],
        "cache_bytes_per_token_after": stored["after"],
    }


@dataclass(frozen=True)
class _Step:
    """One decoding step that leaves the cache as it was."""

    cache: KeyValueCache
    token: torch.Tensor
    length: int

    def __call__(self) -> None:
        self.cache.append(self.token)
        self.cache.crop(self.length)
