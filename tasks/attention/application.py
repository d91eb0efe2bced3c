"""`papers apply vattention`: continue a person's prompt with vAttention and with dense attention, and say what was read and missed.

The prompt is read densely up to its last tokens (`--sparse-tail`, for example a question at its end); these and everything that is
generated see sparse attention in all layers. What is measured compares every sparse call with exact attention on the same tensors, and
is left out of the times.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from tasks.attention.cells import quantile
from tasks.attention.errors import Exact, row_errors
from tasks.attention.interface import Predictor
from tasks.attention.models import end_tokens
from tasks.attention.predictors import PREDICTORS
from tasks.attention.registration import Observed, sparse_attention
from tasks.attention.vattention import VAttentionConfig, warn_about
from tasks.common.node import Log, Params
from tasks.language_models.cache import KeyValueCache, prefill
from tasks.language_models.decoding import decode
from tasks.language_models.pretrained import check_length, load_model


class GenerateParams(Params):
    """Options of the tool."""

    model: str = Field(description="folder of a transformers decoder model, or its id")
    prompt_file: Path = Field(description="text file with the prompt")
    chat: Literal["auto", "yes", "no"] = Field("auto", description="put the prompt into the model's chat form: auto, yes or no")
    new_tokens: int = Field(64, ge=1, description="tokens that are generated at most")
    sparse_tail: int = Field(32, ge=1, description="last tokens of the prompt that see sparse attention already")
    epsilon: float = Field(0.1, gt=0, lt=1, description="relative error that is allowed")
    delta: float = Field(0.1, gt=0, lt=1, description="probability with which it may be exceeded")
    mode: Literal["denominator", "numerator", "sdpa"] = Field(
        "denominator", description="what the bound is on: denominator, numerator, or sdpa for the output"
    )
    predictor: Literal["oracle", "simhash", "pq"] = Field("oracle", description="what ranks keys: oracle, simhash or pq")
    sink: float = Field(16, ge=0, description="first keys that are always read: a share up to 1, else a number")
    window: float = Field(16, ge=0, description="last keys that are always read: a share up to 1, else a number")
    heavy: float = Field(0.05, ge=0, description="heavy keys: a share up to 1, else a number")
    base: float = Field(0.05, ge=0, description="base sample: a share of the rest up to 1, else a number; 0 leaves top-k attention")
    dtype: Literal["bfloat16", "float32", "float16"] = Field("bfloat16", description="of weights and computation")
    seed: int = Field(0, ge=0, description="seed of the samples")
    device: str = Field("cpu", description="torch device")

    def config(self) -> VAttentionConfig:
        """As a configuration of the method."""
        sizes = {name: size(getattr(self, name)) for name in ("sink", "window", "heavy", "base")}
        return VAttentionConfig(**sizes, epsilon=self.epsilon, delta=self.delta, mode=self.mode, predictor=self.predictor, seed=self.seed)


def generate(params: GenerateParams, out: Path, log: Log) -> dict[str, float | int | str]:
    """Continue a prompt with vAttention: the text, what was read, the observed error, and tokens per second beside dense.

    Returns:
        Summary; the text generated with vAttention goes to `out`.

    Raises:
        ValueError: if the prompt is too short for its sparse tail, or longer than the model's positions.
    """
    model, tokenizer = load_model(str(Path(params.model).expanduser()), params.dtype, params.device)
    ids = prompt_ids(tokenizer, read_prompt(params.prompt_file), params.chat)
    tokens = len(ids)
    if tokens <= params.sparse_tail:
        raise ValueError(
            f"the prompt has {tokens} tokens, no more than --sparse-tail {params.sparse_tail}; make it longer, or the tail shorter"
        )
    check_length(model, tokens + params.new_tokens)
    config = params.config()
    warn_about(config, tokens)

    import torch

    everything = torch.tensor([ids], device=params.device)
    context, tail = everything[:, : -params.sparse_tail], everything[:, -params.sparse_tail :]
    log.message(f"reading {tokens} tokens")
    kept, _ = prefill(model, context)
    options: dict[str, Any] = {"predictor": _predictor(params), "seed": params.seed}
    dense, dense_rate = _timed(kept, tail, params)
    with sparse_attention(model, config, **options):
        sparse, sparse_rate = _timed(kept, tail, params)
    watch = Watch(params.epsilon)
    following = torch.cat([tail, torch.tensor([sparse[:-1]], dtype=torch.long, device=params.device)], 1)
    with sparse_attention(model, config, **options, observer=watch):
        kept.append(following)
    out.write_text(tokenizer.decode(sparse, skip_special_tokens=True) + "\n", encoding="utf-8")
    return {
        "prompt_tokens": tokens,
        "new_tokens": len(sparse),
        **watch.summary(),
        "tokens_as_dense": _common(sparse, dense) / max(len(dense), 1),
        "sparse_tokens_per_s": sparse_rate,
        "dense_tokens_per_s": dense_rate,
        "text": tokenizer.decode(sparse, skip_special_tokens=True).strip().replace("\n", " ")[:200],
        "dense_text": tokenizer.decode(dense, skip_special_tokens=True).strip().replace("\n", " ")[:200],
    }


def size(value: float) -> int | float:
    """A share up to 1, else a whole number of keys.

    Raises:
        ValueError: for a number above 1 that is not whole.

    Example:
        >>> size(0.05), size(16.0)
        (0.05, 16)
    """
    if value <= 1:
        return float(value)
    if value != int(value):
        raise ValueError(f"a size above 1 is a whole number of keys, got {value}")
    return int(value)


def read_prompt(path: Path) -> str:
    """The text of a file.

    Raises:
        ValueError: if it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8 (byte {error.start}); save it as UTF-8") from None


def prompt_ids(tokenizer: Any, text: str, chat: str) -> list[int]:
    """Token ids of a prompt, in the model's chat form if it has one (`auto`) or must have one (`yes`).

    Raises:
        ValueError: for an empty prompt, or when the tokenizer has no chat form and one is asked for.
    """
    if not text.strip():
        raise ValueError("the prompt file is empty; write the prompt into it")
    has_form = bool(getattr(tokenizer, "chat_template", None))
    if chat == "yes" and not has_form:
        raise ValueError("--chat yes: this model's tokenizer has no chat form; use --chat no")
    if has_form and chat != "no":
        turn = [{"role": "user", "content": text.strip()}]
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        return ids
    plain: list[int] = tokenizer(text.rstrip("\n"), verbose=False).input_ids
    return plain


class Watch:
    """Adds up densities and errors of sparse calls.

    Args:
        epsilon: rows that miss by more are counted.
    """

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon
        self.density: list[Any] = []
        self.err: list[Any] = []
        self.derr: list[Any] = []

    def __call__(self, seen: Observed) -> None:
        """Compare one call with exact attention."""
        errors = row_errors(Exact.of(seen.logits, seen.valid, seen.values), seen.weights, seen.values, seen.output)
        for name in ("density", "err", "derr"):
            getattr(self, name).append(getattr(errors, name).flatten().cpu())

    def summary(self) -> dict[str, float]:
        """Means over layers, heads and rows."""
        import torch

        density, err, derr = (torch.cat(values) for values in (self.density, self.err, self.derr))
        return {
            "density": float(density.mean()),
            "observed_error": float(err.mean()),
            "observed_error_q95": quantile(err, 0.95),
            "denominator_error": float(derr.abs().mean()),
            "denominator_beyond_epsilon": float((derr.abs() > self.epsilon).float().mean()),
            "output_beyond_epsilon": float((err > self.epsilon).float().mean()),
        }


def _timed(kept: KeyValueCache, tail: Any, params: GenerateParams) -> tuple[list[int], float]:
    """Tokens after the tail and how many came per second; the cache is left as it was."""
    length = kept.length
    started = time.perf_counter()
    found = decode(kept, tail, params.new_tokens, end=end_tokens(kept.model))
    seconds = time.perf_counter() - started
    kept.crop(length)
    return found, len(found) / seconds


def _common(a: list[int], b: list[int]) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _predictor(params: GenerateParams) -> Predictor | None:
    return None if params.predictor == "oracle" else PREDICTORS[params.predictor]()
