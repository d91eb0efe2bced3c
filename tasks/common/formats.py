"""File formats: canonical JSON, Parquet, safetensors, all written under a temporary name first."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write(temporary)` and rename to `path` when it returned, so that nobody ever sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON with sorted keys; numbers that JSON has no word for (NaN, infinity) become null."""
    text = json.dumps(_plain(value), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(path, lambda p: p.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> Any:
    """Read JSON.

    Raises:
        ValueError: if the file is not JSON, naming it.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error}); restore it or run its stage again") from None


def write_parquet(path: Path, frame: pd.DataFrame) -> None:
    """Write a table without its index, byte-stable for equal content and versions."""
    write_atomically(path, lambda p: frame.to_parquet(p, index=False, compression="zstd"))


def read_parquet(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    """Read a table, or some of its columns, memory-mapped."""
    import pandas as pd

    return pd.read_parquet(path, columns=columns, memory_map=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
