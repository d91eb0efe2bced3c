"""Factorised models as folders: configuration, tokenizer, `model.safetensors` with factors in place of weights, and `low_rank.json`.

The note says for each factorised projection its kind and shapes. `load_compressed` builds the model from its configuration, puts empty
factorised layers where the note says, and fills everything from the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tasks.common.formats import read_json, write_json
from tasks.low_rank.attention import PROJECTIONS, Projection, attention_blocks
from tasks.low_rank.factorisations import HeadFactors, SharedFactors
from tasks.low_rank.layers import PerHeadLowRankLinear, SharedLowRankLinear, put
from tasks.low_rank.methods import ModelFactors

NOTE = "low_rank.json"
WEIGHTS = "model.safetensors"
VERSION = 1


def save_factors(path: Path, factors: ModelFactors, dtype: torch.dtype = torch.float32) -> None:
    """Write factors alone, as one safetensors file."""
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    for (layer, p), found in factors.items():
        kind = "head" if isinstance(found, HeadFactors) else f"shared{found.owners}"
        tensors[f"{layer}.{p}.{kind}.A"] = found.A.to(dtype).cpu().contiguous()
        tensors[f"{layer}.{p}.{kind}.B"] = found.B.to(dtype).cpu().contiguous()
        if isinstance(found, HeadFactors):
            tensors[f"{layer}.{p}.{kind}.ranks"] = torch.tensor(found.ranks)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)


def load_factors(path: Path) -> ModelFactors:
    """Read what `save_factors` wrote, as float32."""
    from safetensors.torch import load_file

    tensors = load_file(path)
    factors: ModelFactors = {}
    for name in sorted(n for n in tensors if n.endswith(".A")):
        layer, p, kind, _ = name.split(".")
        A, B = tensors[name].float(), tensors[f"{name[:-1]}B"].float()
        found: Any = SharedFactors(A, B, int(kind.removeprefix("shared") or 1)) if kind != "head" else None
        if found is None:
            found = HeadFactors(A, B, tuple(int(r) for r in tensors[f"{name[:-1]}ranks"]))
        factors[int(layer), p] = found  # type: ignore[index]
    return factors


def save_compressed(model: Any, folder: Path, tokenizer: Any = None, **facts: Any) -> None:
    """Write a model whose projections were factorised (`tasks.low_rank.layers.install`), with its tokenizer or processor.

    Args:
        model: a transformers model.
        folder: made if it is not there.
        tokenizer: anything with `save_pretrained`.
        facts: kept in the note: method, ratios, measurements.

    Raises:
        ValueError: if nothing in the model is factorised.
    """
    from safetensors.torch import save_model

    layers = []
    for index, block in enumerate(attention_blocks(model)):
        for p in PROJECTIONS:
            module = block.projection(p)
            if isinstance(module, PerHeadLowRankLinear | SharedLowRankLinear):
                shape = list(module.A.shape), list(module.B.shape)
                kind = "head" if isinstance(module, PerHeadLowRankLinear) else "shared"
                layers.append(
                    {"layer": index, "projection": p, "kind": kind, "A": shape[0], "B": shape[1], "bias": module.bias is not None}
                )
    if not layers:
        raise ValueError("nothing in this model is factorised; install factors before saving it as a compressed model")
    folder.mkdir(parents=True, exist_ok=True)
    save_model(model, str(folder / WEIGHTS))
    model.config.save_pretrained(folder)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    write_json(folder / NOTE, {"version": VERSION, "class": type(model).__name__, "layers": layers, **facts})


def load_compressed(folder: Path, dtype: str = "bfloat16", device: str = "cpu") -> Any:
    """A compressed model, in evaluation mode and without gradients.

    Raises:
        FileNotFoundError: if the folder holds no note, so that it is not a compressed model.
        ValueError: for a note of another version, or files that lack a tensor.
    """
    import transformers
    from safetensors.torch import load_model
    from transformers.initialization import no_init_weights

    if not (folder / NOTE).is_file():
        raise FileNotFoundError(
            f"{folder / NOTE} is missing; {folder} is not a compressed model (an ordinary one is loaded by transformers)"
        )
    note = read_json(folder / NOTE)
    if note.get("version") != VERSION:
        raise ValueError(f"{folder / NOTE} has version {note.get('version')!r}, this code reads {VERSION}; compress the model again")
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, note["class"])
    with no_init_weights():
        model = kind._from_config(config, dtype=getattr(torch, dtype))
    blocks = attention_blocks(model)
    for entry in note["layers"]:
        p: Projection = entry["projection"]
        A, B = (torch.empty(entry[part], dtype=getattr(torch, dtype)) for part in ("A", "B"))
        block = blocks[entry["layer"]]
        bias = torch.empty(block.heads(p) * block.head_dim, dtype=A.dtype) if entry["bias"] else None
        made: nn.Module = PerHeadLowRankLinear(A, B, bias) if entry["kind"] == "head" else SharedLowRankLinear(A, B, bias)
        put(blocks, {(entry["layer"], p): made})
    model.tie_weights()  # so that weights which were written once are found under all their names
    missing, unexpected = load_model(model, str(folder / WEIGHTS), strict=False)
    if missing or unexpected:
        raise ValueError(f"{folder / WEIGHTS} does not fit its note: missing {sorted(missing)[:3]}, unexpected {sorted(unexpected)[:3]}")
    return model.requires_grad_(False).eval().to(device)
