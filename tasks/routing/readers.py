"""Instance files: the benchmark's NPZ, Dumas / da Silva-Urrutia text, CSV tables, and the project's own safetensors.

All return instances in the unit square, with the unit of length that one unit stands for, so that results can be given in the user's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from tasks.common.formats import write_atomically
from tasks.routing.instances import Instances, euclidean
from tasks.routing.tspdl import tspdl
from tasks.routing.tsptw import tsptw

Rounding = Literal["none", "floor"]
BENCHMARK_UNIT = 100.0
DUMAS_END = 999
COLUMNS = ("x", "y", "ready", "due", "service")


class ReadInstances(NamedTuple):
    """Instances, the length that one unit of theirs stands for, and the files' own names of the nodes."""

    instances: Instances
    unit: float
    labels: list[str]


def read_npz(path: Path, most: int | None = None) -> Instances:
    """The benchmark's file: `locs` with `time_windows` and `service_time`, or with `draft_limit` and `demand`, the depot first.

    Demands and limits may leave the depot out.

    Raises:
        ValueError: for another layout, or arrays that do not fit each other, naming the file.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            held = {name: torch.as_tensor(np.asarray(arrays[name][:most])).double() for name in arrays.files}
    except (ValueError, TypeError, IndexError, EOFError, BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as NPZ of numbers: {error}") from None
    if "locs" not in held or not {"time_windows", "draft_limit"} & held.keys():
        raise ValueError(f"{path}: expected locs with time_windows or draft_limit, got {', '.join(sorted(held)) or 'nothing'}")
    locs = held["locs"]
    try:
        if "time_windows" in held:
            service = held.get("service_time")
            unit = BENCHMARK_UNIT if float(locs.max()) > 1.5 else 1.0
            return tsptw(locs / unit, held["time_windows"] / unit, None if service is None else service / unit)
        demand, limits = held.get("demand"), held["draft_limit"]
        if demand is not None and demand.shape[1] == locs.shape[1] - 1:
            demand = torch.nn.functional.pad(demand, (1, 0))
        if limits.shape[1] == locs.shape[1] - 1:
            limits = torch.cat([limits.amax(1, keepdim=True), limits], 1)
        return tspdl(locs, limits, demand)
    except ValueError as error:
        raise type(error)(f"{path}: {error}") from None


def read_costs(path: Path, most: int | None = None) -> np.ndarray:
    """Reference costs of the benchmark, key `costs`, (B,), in the file's unit.

    Raises:
        ValueError: if the key is missing.
    """
    with np.load(path, allow_pickle=False) as arrays:
        if "costs" not in arrays.files:
            raise ValueError(f"{path}: expected the key costs, got {', '.join(arrays.files) or 'nothing'}")
        return np.asarray(arrays["costs"][:most], dtype=float)


def read_dumas(path: Path, rounding: Rounding = "none") -> ReadInstances:
    """A text file of Dumas et al. (1995) or da Silva & Urrutia (2010): lines of id, x, y, demand, ready, due, service, up to id 999.

    Args:
        path: the file; one line in front of the numbers may be words.
        rounding: `floor` truncates distances, as results on these files do, and restores the triangle inequality by shortest paths.

    Raises:
        ValueError: for a file that is no text, or a line that is not seven numbers, naming it.
    """
    rows: list[list[float]] = []
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text: {error}") from None
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or not words[0].lstrip("-").replace(".", "", 1).isdigit():
            continue
        if int(float(words[0])) == DUMAS_END:
            break
        if len(words) != 7:
            raise ValueError(f"{path}, line {number}: expected id, x, y, demand, ready, due, service, got {line.strip()!r}")
        try:
            rows.append([float(word) for word in words])
        except ValueError:
            raise ValueError(f"{path}, line {number}: expected seven numbers, got {line.strip()!r}") from None
    if len(rows) < 2:
        raise ValueError(f"{path}: expected a depot and at least one customer, got {len(rows)} lines of numbers")
    table = np.array(rows)
    return _in_unit_square(path, table[:, 1:3], table[:, 4:6], table[:, 6], [f"{row[0]:g}" for row in rows], rounding)


def read_csv(path: Path, rounding: Rounding = "none") -> list[ReadInstances]:
    """Instances of a CSV file with columns x, y, ready, due and optionally service, id and instance; the first row of each is the depot.

    An empty `due` means never too late, an empty `ready` or `service` 0.

    Raises:
        ValueError: for a file that is no table, missing columns, or cells that are not numbers, naming them.
    """
    import pandas as pd

    try:
        table = pd.read_csv(path, skipinitialspace=True)
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from None
    table.columns = [str(name).strip().lower() for name in table.columns]
    if missing := [name for name in COLUMNS[:4] if name not in table]:
        raise ValueError(f"{path}: no column {', '.join(missing)}; needed are x, y, ready, due, and service, id, instance if there are any")
    for name in COLUMNS:
        given = table[name] if name in table else pd.Series(0.0, index=table.index)
        numbers = pd.to_numeric(given, errors="coerce")
        if (bad := numbers.isna() & given.notna()).any():
            raise ValueError(f"{path}, row {int(bad.argmax()) + 1}: {name} must be a number, got {given[bad].iloc[0]!r}")
        table[name] = numbers.fillna({"ready": 0.0, "due": np.inf, "service": 0.0}.get(name, np.nan))
    parts = [part for _, part in table.groupby("instance", sort=False)] if "instance" in table else [table]
    found = []
    for part in parts:
        labels = [str(value) for value in (part["id"] if "id" in part else range(len(part)))]
        places, windows = part[["x", "y"]].to_numpy(float), part[["ready", "due"]].to_numpy(float)
        found.append(_in_unit_square(path, places, windows, part["service"].to_numpy(float), labels, rounding))
    return found


def read_any(path: Path, rounding: Rounding = "none") -> list[ReadInstances]:
    """Instances with time windows of a file by its ending: `.csv` a table, `.npz` the benchmark's, else Dumas text."""
    if path.suffix.lower() == ".csv":
        return read_csv(path, rounding)
    if path.suffix.lower() == ".npz":
        batch = read_npz(path)
        labels = [str(j) for j in range(batch.nodes)]
        return [ReadInstances(batch.take(slice(i, i + 1)), BENCHMARK_UNIT, labels) for i in range(len(batch))]
    return [read_dumas(path, rounding)]


def truncated(distance: Tensor) -> Tensor:
    """Lengths rounded down, then shortest paths, (N, N): rounding down breaks the triangle inequality.

    >>> truncated(torch.tensor([[0.0, 1.9, 3.5], [1.9, 0.0, 1.7], [3.5, 1.7, 0.0]]))[0]
    tensor([0., 1., 2.])
    """
    made = distance.floor()
    for k in range(len(made)):
        made = torch.minimum(made, made[:, k : k + 1] + made[k : k + 1])
    return made


def write_instances(path: Path, instances: Instances, **extra: Tensor) -> None:
    """Write a batch, and tensors that belong to it, as safetensors."""
    from safetensors.torch import save_file

    held = {"locs": instances.locs, "early": instances.early, "late": instances.late, "use": instances.use, **extra}
    made = {name: value.contiguous() for name, value in held.items()}
    write_atomically(path, lambda p: save_file(made, p, metadata={"problem": instances.problem}))


def read_instances(path: Path) -> tuple[Instances, dict[str, Tensor]]:
    """What `write_instances` wrote: the batch and the other tensors."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        problem = (file.metadata() or {})["problem"]
    locs, early, late, use = (held.pop(name) for name in ("locs", "early", "late", "use"))
    lengths = euclidean(locs)
    steps = use[:, :, None] + lengths if problem == "tsptw" else use[:, None, :].expand_as(lengths).contiguous()
    return Instances(problem, locs, early, late, use, lengths, steps), held


def _in_unit_square(
    path: Path, places: np.ndarray, windows: np.ndarray, service: np.ndarray, labels: list[str], rounding: Rounding
) -> ReadInstances:
    finite = places[np.isfinite(places).all(1)]
    corner = finite.min(0) if len(finite) else np.zeros(2)
    unit = float((finite - corner).max()) if len(finite) > 1 else 1.0
    unit = unit if unit > 0 else 1.0
    locs = torch.as_tensor((places - corner) / unit)[None]
    distance = None
    if rounding == "floor":
        distance = truncated(euclidean(torch.as_tensor(places)[None])[0])[None] / unit
    try:
        tsptw(*(torch.as_tensor(part)[None] for part in (places, windows, service)))  # complaints in the user's own unit
        made = tsptw(locs, torch.as_tensor(windows / unit)[None], torch.as_tensor(service / unit)[None], distance)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return ReadInstances(made, unit, labels)
