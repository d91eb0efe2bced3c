"""What a stage leaves behind: metrics, history, figures inside its folder; timings and the record of the run beside it."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, TypeVar

from flows.engine.project import read_object
from tasks.common.formats import write_json

T = TypeVar("T")
CURVE_POINTS = 200


def md5(path: Path) -> str:
    """MD5 of a file, as DVC computes it."""
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def write_metrics(path: Path, metrics: Mapping[str, Any], node: str) -> None:
    """Write `metrics.json`: flat numbers; what is not finite becomes null and is named, so that its claims are inconclusive.

    Raises:
        TypeError: if a value is not a number.
    """
    flat: dict[str, float | int | None] = {}
    if not isinstance(metrics, Mapping):
        raise TypeError(f"{node}: must return a dict of metrics, got {_short(metrics)}; `return {{}}` where there are none")
    for name, value in metrics.items():
        plain = value.item() if getattr(value, "size", None) == 1 or (hasattr(value, "numel") and value.numel() == 1) else value
        if not isinstance(name, str) or not name.strip():
            raise TypeError(f"{node}: the name of a metric must be text, got {name!r}")
        if isinstance(plain, bool) or not isinstance(plain, int | float):
            raise TypeError(f"{node}: metric {name!r} must be a number, got {_short(value)}")
        if isinstance(plain, int) and abs(plain) > sys.float_info.max:
            raise TypeError(f"{node}: metric {name!r} is larger than any number that a file of numbers holds")
        if not math.isfinite(plain):
            print(f"warning: metric {name!r} is {plain}; it is kept as null and claims that read it are inconclusive", file=sys.stderr)
            flat[name] = None
        else:
            flat[name] = plain
    write_json(path, flat)


def _short(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


class StageLog:
    """The `Log` of a running stage: bars on the terminal, history as it comes in a file beside the folder, figures as PNG.

    Args:
        out: the stage's folder.
        live: where rows of the history are appended while the stage runs, for whoever follows it.
    """

    def __init__(self, out: Path, live: Path) -> None:
        self._out, self._live_path = out, live
        self._live: TextIO | None = None
        self._rows: list[tuple[int, str, float]] = []
        self.timings: dict[str, float] = {}

    def __enter__(self) -> StageLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._live.close()
        if kind is None and self._rows:
            self._write_history()

    def progress(self, items: Iterable[T], *, total: int | None = None, desc: str = "") -> Iterator[T]:
        """Yield `items` under a bar; where nobody watches, a line every ten seconds."""
        import os

        from tqdm import tqdm

        watched = os.environ.get("PAPERS_TERMINAL") == "1"
        interval = 0.2 if watched else 10.0
        yield from tqdm(items, total=total, desc=desc, mininterval=interval, maxinterval=interval, file=sys.stderr, dynamic_ncols=watched)

    def history(self, step: int, **values: float) -> None:
        """Add one row per value to the history."""
        if self._live is None:
            self._live = self._live_path.open("w", encoding="utf-8", buffering=1)
        finite = {name: float(v) for name, v in values.items() if math.isfinite(v)}
        self._rows += [(int(step), name, value) for name, value in finite.items()]
        self._live.write(json.dumps({"step": int(step), "at": round(time.time(), 3), **finite}) + "\n")

    def figure(self, name: str, figure: Any) -> None:
        """Write `figures/<name>.png`, without a date or version inside, and close the figure.

        Raises:
            ValueError: for a name that is no plain file name.
        """
        import matplotlib.pyplot as plt

        if not name or name.startswith(".") or any(c in name for c in "/\\\0"):
            raise ValueError(f"the name of a figure must be a plain file name, got {name!r}; write it like `error-by-size`")

        path = self._out / "figures" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Software": None})
        plt.close(figure)

    def timing(self, **values: float) -> None:
        """Keep timings for the file beside the folder."""
        self.timings.update({name: float(value) for name, value in values.items()})

    def message(self, text: str) -> None:
        """One line on the terminal and in the stage's log."""
        print(text, file=sys.stderr)

    def _write_history(self) -> None:
        import pandas as pd

        from tasks.common.formats import write_parquet

        frame = pd.DataFrame(self._rows, columns=["step", "name", "value"]).astype({"step": "int64", "value": "float64"})
        write_parquet(self._out / "history.parquet", frame)
        wide = frame.pivot_table(index="step", columns="name", values="value", aggfunc="last").reset_index()
        thin = wide.iloc[:: max(1, math.ceil(len(wide) / CURVE_POINTS))]
        rows = [{str(k): v for k, v in row.items() if pd.notna(v)} for row in thin.to_dict("records")]
        write_json(self._out / "curves.json", rows)


@dataclass(frozen=True)
class RunRecord:
    """How a stage's folder came to be; lies beside the folder, neither hashed nor depended on.

    It counts only while it `matches` what `dvc.lock` says: after a restore it is missing, or another execution's.
    """

    stage: str
    code: dict[str, str]
    params: dict[str, Any]
    versions: dict[str, str]
    metrics_sha256: str
    seconds: float
    cpu_seconds: float
    peak_gib: float
    started_at: float
    seed: int | None = None
    mlflow_run_id: str = ""
    python: str = field(default_factory=lambda: sys.version.split()[0])

    @staticmethod
    def digest(path: Path) -> str:
        """SHA-256 of a file, empty if it is not there."""
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""

    @staticmethod
    def path(out: Path) -> Path:
        """Where the record of the stage with folder `out` lies."""
        return out.with_name(f"{out.name}.run.json")

    def write(self, out: Path) -> None:
        """Write the record beside the folder."""
        write_json(self.path(out), asdict(self))

    @classmethod
    def read(cls, out: Path) -> RunRecord | None:
        """The record beside a folder, or None if there is none that can be read."""
        try:
            record = cls(**read_object(cls.path(out)))
        except TypeError:
            return None
        numbers = (record.seconds, record.cpu_seconds, record.peak_gib, record.started_at)
        tables = (record.code, record.params, record.versions)
        whole = all(isinstance(n, int | float) for n in numbers) and all(isinstance(t, dict) for t in tables)
        return record if whole else None

    def matches(self, locked: Mapping[str, Any], metrics: Path) -> bool:
        """Whether this execution made what `dvc.lock` records.

        Args:
            locked: the stage's entry in `dvc.lock`.
            metrics: the metrics file in the folder.
        """
        code = {d["path"]: d.get("md5") for d in locked.get("deps", []) if d["path"].endswith(".py")}
        values = {key: value for file in locked.get("params", {}).values() for key, value in file.items()}
        versions = {key: value for key, value in values.items() if key in self.versions}
        params = {key: value for key, value in values.items() if key not in self.versions}
        return code == self.code and params == self.params and versions == self.versions and self.metrics_sha256 == self.digest(metrics)
