"""The contract between a node and whoever runs it.

A node is a function ``node(params, inputs, out, log) -> metrics``: `params` is a frozen, validated `Params` model, `inputs`
the folders of the stages it needs, `out` the only folder it may write to, `log` where progress, history and figures go.
This module knows nothing about who calls: a pipeline, a test, or a notebook with `NullLog()`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

T = TypeVar("T")

Metrics = dict[str, float]
"""Flat numbers, units in the names (`kl_nats`). Dots group: `<arm>.<metric>.<data set>`, see `tasks.common.statistics`."""


class Params(BaseModel):
    """Base of every node's parameters: frozen, unknown keys refused, all fields with a default that makes sense."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Inputs(Mapping[str, Path]):
    """The folders of the stages that a node needs, by the name of the need.

    Raises:
        KeyError: for a need that the stage does not bind, naming the ones it does.
        FileNotFoundError: by `file`, when the folder lacks the file, naming what it holds.
    """

    def __init__(self, folders: Mapping[str, Path] | None = None) -> None:
        self._folders = {name: Path(folder) for name, folder in (folders or {}).items()}

    def __getitem__(self, need: str) -> Path:
        try:
            return self._folders[need]
        except KeyError:
            known = ", ".join(sorted(self._folders)) or "none"
            raise KeyError(f"need {need!r} is not bound to this stage (bound: {known}); add it to the stage's `needs`") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._folders)

    def __len__(self) -> int:
        return len(self._folders)

    def file(self, need: str, name: str) -> Path:
        """Path of file `name` inside the folder of `need`."""
        path = self[need] / name
        if not path.exists():
            holds = ", ".join(sorted(p.name for p in self[need].glob("*"))) or "nothing"
            raise FileNotFoundError(f"{path} is missing (the folder holds {holds}); run the stage behind need {need!r} again")
        return path


class Log(Protocol):
    """Where a node reports. Nothing that goes here may influence its results."""

    def progress(self, items: Iterable[T], *, total: int | None = None, desc: str = "") -> Iterator[T]:
        """Yield `items`, showing a progress bar."""
        ...

    def history(self, step: int, **values: float) -> None:
        """Add one row of the training history; becomes `history.parquet` (step, name, value) and `curves.json`."""
        ...

    def figure(self, name: str, figure: Any) -> None:
        """Keep a matplotlib figure as `figures/<name>.png` (small file, readable at 800 px) and close it."""
        ...

    def timing(self, **values: float) -> None:
        """Keep wall times, rates and memory, which never belong into metrics (`decode_ms_per_token=...`)."""
        ...

    def message(self, text: str) -> None:
        """One line for the person who watches."""
        ...


class NullLog:
    """A `Log` that keeps nothing, for library use and tests."""

    def progress(self, items: Iterable[T], *, total: int | None = None, desc: str = "") -> Iterator[T]:
        """Yield `items` as they are."""
        yield from items

    def history(self, step: int, **values: float) -> None:
        """Drop the row."""

    def figure(self, name: str, figure: Any) -> None:
        """Close the figure, so that memory does not grow."""
        if pyplot := sys.modules.get("matplotlib.pyplot"):  # no import: it would make every stage depend on matplotlib
            pyplot.close(figure)

    def timing(self, **values: float) -> None:
        """Drop the timings."""

    def message(self, text: str) -> None:
        """Drop the line."""
