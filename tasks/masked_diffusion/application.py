"""`papers apply lsp`: decode prompts with a masked-diffusion model by the longest-stable-prefix scheduler, beside the usual schedulers.

The model is a folder of LLaDA or Dream (`config.json`, safetensors, tokenizer), or one of `data/lsp/warmstart/model-<seed>`, whose
prompts are programmes like `S=3+1-4=2+2#`.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.common.node import Log, Params
from tasks.masked_diffusion.decoding import Decoded
from tasks.masked_diffusion.delimiters import PROSE
from tasks.masked_diffusion.model import MaskedDiffusionTransformer
from tasks.masked_diffusion.prefix_schedule import LspParams
from tasks.masked_diffusion.real_models import Loaded, load_any
from tasks.masked_diffusion.register_trace import TOKENS, TraceTask, read_task
from tasks.masked_diffusion.schedulers import QuotaParams, Scheduler, ThresholdParams, decode

WHOLE = 256


class DecodeParams(Params):
    """Options of `papers apply lsp`."""

    model: Path = Field(description="model folder: LLaDA or Dream, or one that the pipeline trained")
    prompts: Path = Field(description="text file with a prompt per line, or JSON Lines with a field `prompt`")
    length: int | None = Field(None, ge=1, description="answer tokens; default 256, or what the model has room for")
    alpha: float = Field(0.25, gt=0, le=1, description="share of the rest that the threshold lets through at least")
    beta: float = Field(0.5, gt=0, le=1, description="largest share of the rest that one call commits")
    tau_min: float = Field(2.0, ge=0, description="margin (logits) below which nothing is committed beyond the minimum")
    literal: bool = Field(False, description="drop the floor --tau-min: a share alpha is committed whatever the margins are")
    window: int = Field(8, ge=0, description="tokens that a block may be shortened to end at a delimiter")
    stability: int = Field(1, ge=0, description="calls over which a token must not have changed")
    cache: Literal["prefix", "none"] = Field("prefix", description="keep keys and values of committed tokens")
    block: int = Field(32, ge=1, description="tokens per block of the threshold scheduler; the whole answer where it does not divide it")
    compare: bool = Field(True, description="decode with one token per call and by threshold too")
    chat: bool = Field(True, description="prompts are a user's turn (where the tokenizer has a template)")
    dtype: Literal["float32", "bfloat16"] = Field("bfloat16", description="of a LLaDA's or Dream's weights")
    seed: int = Field(0, ge=0, description="not used: decoding is deterministic")
    device: str = Field("cpu", description="torch device")


def read_prompts(path: Path) -> list[str]:
    """Prompts of a text file, a line each, or of JSON Lines.

    Raises:
        ValueError: if there are none, the file is no text, or a line of JSON has no `prompt`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: {error}") from None
    lines = [line for line in text.splitlines() if line.strip()]
    if path.suffix in (".jsonl", ".json"):
        lines = [_prompt_of(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]
    if not lines:
        raise ValueError(f"{path} holds no prompts; write one per line")
    return lines


def _prompt_of(line: str, where: str) -> str:
    try:
        return str(json.loads(line)["prompt"])
    except (json.JSONDecodeError, KeyError, TypeError):
        raise ValueError(f"{where}: expected a JSON object with a field `prompt`, got {line[:60]!r}") from None


def schedulers_of(params: DecodeParams, length: int) -> dict[str, Scheduler]:
    """The schedulers that decode, LSP last."""
    lsp = LspParams(
        alpha=params.alpha,
        beta=params.beta,
        tau_min=None if params.literal else params.tau_min,
        window=params.window,
        stability=params.stability,
        cache=params.cache,
    )
    if not params.compare:
        return {"lsp": lsp}
    block = params.block if length % params.block == 0 else None
    cached = "prefix" if params.cache == "prefix" else "none"
    return {"quota": QuotaParams(), "threshold": ThresholdParams(block=block, cache=cached), "lsp": lsp}


def decode_prompts(params: DecodeParams, out: Path, log: Log) -> dict[str, float | int | str]:
    """Decode prompts with a masked-diffusion model by longest stable prefix, next to quota and threshold decoding."""
    prompts = read_prompts(params.prompts)
    _check_device(params.device)
    loaded = load_any(params.model, params.dtype, params.device, params.chat, PROSE)
    encoded = [loaded.text.encode(prompt) for prompt in prompts]
    if (params.model / "task.json").is_file():
        _check_programs(encoded, read_task(params.model))
    length = answer_length(params, loaded, max(map(len, encoded)))
    rows: list[dict[str, object]] = []
    summary: dict[str, float | int | str] = {"prompts": len(prompts), "answer_tokens": length}
    answers: dict[str, list[list[int]]] = {}
    for name, scheduler in schedulers_of(params, length).items():
        decode(loaded.denoiser, encoded[0], min(length, 4), loaded.specials, LspParams(cache="none"), device=params.device)  # warm up
        before = _clock(params.device)
        found = [
            decode(loaded.denoiser, tokens, length, loaded.specials, scheduler, device=params.device)
            for tokens in log.progress(encoded, desc=name)
        ]
        seconds = _clock(params.device) - before
        answers[name] = [one.tokens for one in found]
        rows += [_row(name, i, prompts[i], one, loaded) for i, one in enumerate(found)]
        summary[f"{name}_calls"] = sum(one.counters.nfe for one in found) / len(found)
        summary[f"{name}_token_forwards"] = sum(one.counters.token_forwards for one in found) / len(found)
        summary[f"{name}_tokens_per_s"] = sum(len(one.tokens) for one in found) / seconds
    for name in ("quota", "threshold"):
        if name in answers:
            same = [a == b for a, b in zip(answers["lsp"], answers[name], strict=True)]
            summary[f"lsp_answers_as_{name}"] = sum(same) / len(same)
    out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return summary


def answer_length(params: DecodeParams, loaded: Loaded, prompt: int) -> int:
    """Answer tokens: what was asked, or what there is room for.

    Raises:
        ValueError: if prompt and answer do not fit into the model.
    """
    if isinstance(loaded.denoiser, MaskedDiffusionTransformer):
        room = loaded.denoiser.config.positions - prompt
        if room < 1 or (params.length or 1) > room:
            raise ValueError(
                f"the model has {loaded.denoiser.config.positions} positions; a prompt of {prompt} leaves {room} for the answer"
            )
        return params.length or room
    return params.length or WHOLE


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device!r} cannot be used here ({str(error).splitlines()[0]}); take another, say cpu") from None


def _check_programs(encoded: list[list[int]], task: TraceTask) -> None:
    """A model of the pipeline knows programmes of the length and law that it was trained on, and no others."""
    digit = f"[0-{task.modulus - 1}]"
    form = re.compile(f"S={digit}([{re.escape('=' + task.operations)}]{digit})*#(<pad>)*")
    for number, tokens in enumerate(encoded, 1):
        if len(tokens) != task.prompt_length:
            wanted = f"{task.prompt_length} tokens ({task.steps} steps)"
            raise ValueError(f"prompt {number} has {len(tokens)} tokens; this model was trained on programmes of {wanted}")
        text = "".join(TOKENS[token] for token in tokens)
        if not form.fullmatch(text):
            known = f"S, = and a digit, then one of ={task.operations} and a digit per step, then #; digits below {task.modulus}"
            raise ValueError(f"prompt {number} is {text!r}; this model was trained on programmes like {known}")


def _clock(device: str) -> float:
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()


def _row(scheduler: str, number: int, prompt: str, found: Decoded, loaded: Loaded) -> dict[str, object]:
    counters = found.counters
    return {
        "scheduler": scheduler,
        "number": number,
        "prompt": prompt,
        "answer": loaded.text.decode(found.tokens),
        "calls": counters.nfe,
        "token_forwards": counters.token_forwards,
        "flip_rate": counters.flip_rate,
        "runs": counters.contiguous_runs,
    }
