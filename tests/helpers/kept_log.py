"""A log for tests that keeps what a node tells it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from tasks.common.node import NullLog

T = TypeVar("T")


class Drawn(NamedTuple):
    """A figure: how many axes, and its width and height in inches."""

    axes: int
    size: list[float]


class KeptLog(NullLog):
    """Keeps figures by name, rows of the history with their step, timings, messages, and the bars' names and lengths."""

    def __init__(self) -> None:
        self.figures: dict[str, Drawn] = {}
        self.steps: list[dict[str, float]] = []
        self.timings: dict[str, float] = {}
        self.messages: list[str] = []
        self.bars: list[tuple[str, int | None]] = []

    def progress(self, items: Iterable[T], *, total: int | None = None, desc: str = "") -> Iterator[T]:
        self.bars.append((desc, total))
        yield from items

    def history(self, step: int, **values: float) -> None:
        self.steps.append({"step": step, **values})

    def figure(self, name: str, figure: Any) -> None:
        self.figures[name] = Drawn(len(figure.axes), figure.get_size_inches().tolist())
        super().figure(name, figure)

    def timing(self, **values: float) -> None:
        self.timings |= values

    def message(self, text: str) -> None:
        self.messages.append(text)
