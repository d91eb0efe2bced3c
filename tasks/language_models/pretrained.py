"""Load a causal language model and its tokenizer from a transformers folder, offline, with errors that say what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DTYPES = ("bfloat16", "float32", "float16")
ATTENTIONS = ("sdpa", "eager", "flash_attention_2")


def load_model(folder: str | Path, dtype: str = "bfloat16", device: str = "cpu", attention: str = "sdpa") -> tuple[Any, Any]:
    """Model in evaluation mode, without gradients, and tokenizer.

    Args:
        folder: what `save_pretrained` wrote, or a model id that the local Hugging Face cache (or the hub) can resolve.
        dtype: of weights and computation.
        device: torch device.
        attention: attention implementation of transformers.

    Returns:
        (model, tokenizer); the tokenizer pads on the left.

    Raises:
        ValueError: for an unknown dtype or attention implementation, listing the known ones; for files that lack weights of the model.
        FileNotFoundError: for a local folder without `config.json`, or one without a tokenizer.
        OSError: by transformers, for a model id that cannot be resolved.
    """
    import torch
    from transformers import AutoModelForCausalLM

    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    if attention not in ATTENTIONS:
        raise ValueError(f"attention must be one of {', '.join(ATTENTIONS)}, got {attention!r}")
    source = checked_source(folder)
    tokenizer = load_tokenizer(source)
    with quiet():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=getattr(torch, dtype), attn_implementation=attention, output_loading_info=True
        )
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:  # transformers would draw them at random and go on
        raise ValueError(
            f"{source} lacks {len(missing)} weights of a {type(model).__name__}, such as {missing[0]}; is it another kind of model?"
        )
    return model.to(device).eval().requires_grad_(False), tokenizer


def load_tokenizer(folder: str | Path) -> Any:
    """The tokenizer of a folder or model id, padding on the left.

    Raises:
        FileNotFoundError: for a local folder without `tokenizer.json` or `tokenizer_config.json`.
    """
    from transformers import AutoTokenizer

    source = checked_source(folder)
    path = Path(source)
    if path.is_dir() and not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise FileNotFoundError(f"{path} holds no tokenizer (tokenizer.json); save it there with tokenizer.save_pretrained(...)")
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.padding_side = "left"
    return tokenizer


def checked_source(folder: str | Path) -> str:
    """The folder as text, or a model id `owner/name` as it is.

    Raises:
        FileNotFoundError: for a path that is no folder and no model id, or a folder without `config.json`.
    """
    path = Path(folder)
    if path.is_dir():
        if not (path / "config.json").is_file():
            holds = ", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing"
            raise FileNotFoundError(
                f"{path} is no transformers model: no config.json (the folder holds {holds}); give the folder of save_pretrained"
            )
        return str(path)
    text = str(folder)
    if path.is_absolute() or text.startswith((".", "~")) or text.count("/") != 1:
        raise FileNotFoundError(f"{text} is neither a folder nor a model id like owner/name; give one of them")
    return text


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' own progress bars off the terminal; a stage shows its own."""
    from transformers import utils

    logging: Any = utils.logging
    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()


def position_limit(model: Any) -> int:
    """Longest context the model was made for (`max_position_embeddings`)."""
    return int(model.config.max_position_embeddings)


def check_length(model: Any, tokens: int) -> None:
    """Refuse a context longer than the model's positions.

    Raises:
        ValueError: naming both lengths.
    """
    if tokens > position_limit(model):
        raise ValueError(
            f"a context of {tokens} tokens is beyond max_position_embeddings = {position_limit(model)}; shorten it or take another model"
        )
