"""Weights of an attention model with what is needed to rebuild it, as safetensors."""

from __future__ import annotations

import json
from pathlib import Path

from tasks.common.formats import write_atomically
from tasks.routing.attention_model import AttentionModel
from tasks.routing.instances import Problem


def save_model(path: Path, model: AttentionModel) -> None:
    """Write weights, problem and sizes."""
    from safetensors.torch import save_file

    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    about = {"problem": model.problem, "shape": json.dumps(model.shape)}
    write_atomically(path, lambda p: save_file(weights, p, metadata=about))


def load_model(path: Path, problem: Problem, width: int | None = None, refinement: bool | None = None) -> AttentionModel:
    """Read what `save_model` wrote.

    Args:
        path: the file.
        problem: for which the weights are wanted.
        width: d that they must have, or None for whatever they have.
        refinement: whether the model shall see the refinement state, or None for as it was saved.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is no checkpoint, or of another problem or width, saying which.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(f"there are no weights at {path}")
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is no file of weights ({error})") from None
    if "shape" not in about or "problem" not in about:
        raise ValueError(f"{path} holds weights of something else: it names no problem and no shape")
    shape = json.loads(about["shape"])
    if about["problem"] != problem:
        raise ValueError(f"{path} holds a model for {about['problem']}, wanted is one for {problem}")
    if width is not None and shape["width"] != width:
        raise ValueError(f"{path} holds a model of width {shape['width']}, wanted is {width}")
    if refinement is not None:
        shape["refinement"] = refinement
    model = AttentionModel(problem, **shape)
    model.load_state_dict(weights)
    return model.eval()
