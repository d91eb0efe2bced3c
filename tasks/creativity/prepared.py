"""Stages that make triangle tasks and the policies that fine-tuning starts from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.creativity.triangles import Creativity, TriangleTask, judge, make_task, training_strings

if TYPE_CHECKING:
    import pandas as pd

POLICIES = ("triangles", "triangles_gpt")
"""Names of the two policies in metrics and files: tabular, transformer."""


class TaskParams(Params):
    """The graphs.

    Attributes:
        vertices: V.
        planted: triangles.
        edges: random pairs joined besides.
        held_out: share of the triangles that are not shown.
        strings: in the pretraining set.
        seeds: graphs.
        seed: of everything random.
    """

    vertices: int = Field(40, ge=3)
    planted: int = Field(80, ge=1)
    edges: int = Field(60, ge=0)
    held_out: float = Field(0.25, gt=0.0, lt=1.0)
    strings: int = Field(10_000, ge=2)
    seeds: int = Field(3, ge=1)
    seed: int = Field(0, ge=0)


class TriangleStartParams(Params):
    """Pretraining of the transformer; the tabular policy has nothing to set.

    Attributes:
        seeds: graphs, as prepared.
        layers: blocks of the transformer; 0 leaves it out.
        width: of its embeddings.
        heads: of its attention.
        steps: of its pretraining.
        batch: strings per step.
        rate: of AdamW.
        samples: T, drawn to judge a pretrained policy.
        tabular: whether there is a tabular policy; its tables have V^3 entries.
        validity: bounds of the tabular policy's validity, without which the comparison would be another one.
        device: of the transformer.
        seed: of everything random.
    """

    seeds: int = Field(3, ge=1)
    layers: int = Field(2, ge=0)
    width: int = Field(64, ge=1)
    heads: int = Field(4, ge=1)
    steps: int = Field(400, ge=1)
    batch: int = Field(256, ge=1)
    rate: float = Field(3e-3, gt=0.0)
    samples: int = Field(1024, ge=1)
    tabular: bool = True
    validity: tuple[float, float] = (0.4, 0.6)
    device: str = "cpu"
    seed: int = Field(0, ge=0)


def prepare(params: TaskParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<seed>.npz` (the task) and `<seed>.parquet` (the strings). Metrics: `{shown,held_out}.count.triangles`."""
    tasks = []
    for s in log.progress(range(params.seeds), desc="graphs"):
        task = make_task(params.vertices, params.planted, params.edges, params.held_out, np.random.default_rng([params.seed, s, 0]))
        np.savez_compressed(out / f"{s}.npz", adjacency=task.adjacency, shown=task.shown, held_out=task.held_out)
        _write_strings(out / f"{s}.parquet", *training_strings(task, params.strings, np.random.default_rng([params.seed, s, 1])))
        tasks.append(task)
    metrics = summarise("shown.count.triangles", [len(t.shown) for t in tasks])
    return metrics | summarise("held_out.count.triangles", [len(t.held_out) for t in tasks])


def load_task(path: Path) -> TriangleTask:
    """A task that `prepare` wrote."""
    with np.load(path) as kept:
        return TriangleTask(kept["adjacency"], kept["shown"], kept["held_out"])


def warmstart(params: TriangleStartParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<policy>.<seed>.safetensors` and `pretrained.parquet` (samples).

    Metrics: `pretrained.start_validity.<policy>` for the policies `triangles` (tabular) and `triangles_gpt`.

    Raises:
        RuntimeError: if the mean validity of the tabular policies leaves its bounds.
    """
    import pandas as pd

    folder = inputs["prepare-triangles"]
    names = [name for name, wanted in zip(POLICIES, (params.tabular, params.layers > 0), strict=True) if wanted]
    jobs = [(params, folder, out, name, s) for name in names for s in range(params.seeds)]
    found = list(log.progress(map_parallel(_pretrain, jobs), total=len(jobs), desc="pretrain"))
    metrics: Metrics = {}
    for name in names:
        own = [one for job, (one, _) in zip(jobs, found, strict=True) if job[3] == name]
        metrics |= summarise(f"pretrained.start_validity.{name}", [one.validity for one in own])
    low, high = params.validity
    if params.tabular and not low <= (seen := metrics["pretrained.start_validity.triangles"]) <= high:
        raise RuntimeError(
            f"the tabular policy's validity is {seen:.3f}, outside {low}..{high}; the comparison holds for such a start alone"
        )
    frames = [
        sample_table(samples).assign(arm="pretrained", policy=job[3], seed=job[4]) for job, (_, samples) in zip(jobs, found, strict=True)
    ]
    write_parquet(out / "samples.parquet", pd.concat(frames, ignore_index=True))
    return metrics


def sample_table(samples: np.ndarray) -> pd.DataFrame:
    """Samples (T, 3) as a table."""
    import pandas as pd

    return pd.DataFrame(samples, columns=["v1", "v2", "v3"])


def make_triple_policy(params: TriangleStartParams, name: str, task: TriangleTask, seed: int) -> Any:
    """A policy of this name, before any training; the tabular one is made of counts and needs none."""
    if name == "triangles":
        from tasks.creativity.tabular import from_counts

        return from_counts(task)
    from tasks.creativity.transformer import TransformerParams, TransformerPolicy

    size = TransformerParams(layers=params.layers, width=params.width, heads=params.heads)
    return TransformerPolicy(task.vertices, size, seed).to(params.device)


def _pretrain(job: tuple[TriangleStartParams, Path, Path, str, int]) -> tuple[Creativity, np.ndarray]:
    from safetensors.torch import save_model

    params, folder, out, name, s = job
    task = load_task(folder / f"{s}.npz")
    policy = make_triple_policy(params, name, task, params.seed + s)
    if name == "triangles_gpt":
        from tasks.creativity.transformer import TransformerParams

        size = TransformerParams(steps=params.steps, batch=params.batch, rate=params.rate)
        policy.pretrain(*_read_strings(folder / f"{s}.parquet"), size, np.random.default_rng([params.seed, s, 2]))
    save_model(policy, str(out / f"{name}.{s}.safetensors"))
    samples = policy.sample(params.samples, np.random.default_rng([params.seed, s, 3]))
    return judge(task, samples), samples


def _write_strings(path: Path, edges: np.ndarray, triangles: np.ndarray) -> None:
    padded = np.concatenate([np.column_stack([edges, np.full(len(edges), -1)]), triangles])
    write_parquet(path, sample_table(padded))


def _read_strings(path: Path) -> tuple[np.ndarray, np.ndarray]:
    from tasks.common.formats import read_parquet

    strings = read_parquet(path).to_numpy()
    return strings[strings[:, 2] < 0, :2], strings[strings[:, 2] >= 0]
