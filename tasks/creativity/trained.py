"""Stage that fine-tunes policies over triples, one arm after the other, every arm with the same number of samples."""

from __future__ import annotations

import time
from pathlib import Path
from zlib import crc32

import numpy as np
from pydantic import Field, model_validator

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.creativity.prepared import TriangleStartParams, load_task, make_triple_policy, sample_table
from tasks.creativity.set_fine_tuning import CreativityArm, CreativityTraining, fine_tune_triples

DEFAULT_ARMS = {"ppo": CreativityArm(), "poly": CreativityArm(objective="polychromic"), "set_mean": CreativityArm(objective="mean")}


class TrianglesTrainParams(Params):
    """Arms of both policies.

    Attributes:
        start: the stage before: sizes of the policies.
        arms: of the tabular policy.
        training: of the tabular policy.
        gpt_arms: of the transformer.
        gpt_training: of the transformer.
        samples: T, drawn from every fine-tuned policy.
        seed: of everything random.
    """

    start: TriangleStartParams = TriangleStartParams()
    arms: dict[str, CreativityArm] = DEFAULT_ARMS
    training: CreativityTraining = CreativityTraining()
    gpt_arms: dict[str, CreativityArm] = DEFAULT_ARMS
    gpt_training: CreativityTraining = CreativityTraining(updates=150, rate=1e-3)
    samples: int = Field(1024, ge=1)
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _fits(self) -> TrianglesTrainParams:
        for training, arms in ((self.training, self.arms), (self.gpt_training, self.gpt_arms)):
            for name, arm in arms.items():
                if training.samples % arm.group:
                    raise ValueError(f"arm {name!r}: samples ({training.samples}) must be a multiple of its group of {arm.group}")
        return self


def train(params: TrianglesTrainParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `samples.parquet` (arm, policy, seed, v1, v2, v3) of every fine-tuned policy.

    Metrics: `<arm>.samples.<policy>`, the samples that training used.
    """
    import pandas as pd

    folders = (inputs["prepare-triangles"], inputs["warmstart-triangles"])
    plan = {"triangles": (params.arms, params.training), "triangles_gpt": (params.gpt_arms, params.gpt_training)}
    wanted = {"triangles": params.start.tabular, "triangles_gpt": params.start.layers > 0}
    jobs = [
        (params, *folders, policy, name, arm, training, s)
        for policy, (arms, training) in plan.items()
        if wanted[policy]
        for name, arm in arms.items()
        for s in range(params.start.seeds)
    ]
    metrics: Metrics = {}
    tables = []
    seconds: dict[tuple[str, str], list[float]] = {}
    curves: dict[tuple[int, str], list[float]] = {}
    for job, (samples, rows, spent) in zip(jobs, log.progress(map_parallel(_train, jobs), total=len(jobs), desc="fine-tune"), strict=True):
        policy, name, training, s = job[3], job[4], job[6], job[7]
        tables.append(sample_table(samples).assign(arm=name, policy=policy, seed=s))
        metrics[f"{name}.samples.{policy}"] = float(training.updates * training.samples)
        seconds.setdefault((policy, name), []).append(spent)
        for step, told in rows:
            for key, value in told.items():
                curves.setdefault((step, f"{name}.{key}.{policy}"), []).append(value)
    for (step, key), values in sorted(curves.items()):
        log.history(step, **{key: float(np.mean(values))})
    log.timing(**{f"{name}_{policy}_s": float(np.mean(values)) for (policy, name), values in seconds.items()})
    write_parquet(out / "samples.parquet", pd.concat(tables, ignore_index=True))
    return metrics


Rows = list[tuple[int, dict[str, float]]]


def _train(
    job: tuple[TrianglesTrainParams, Path, Path, str, str, CreativityArm, CreativityTraining, int],
) -> tuple[np.ndarray, Rows, float]:
    from safetensors.torch import load_model

    params, prepared, warm, policy_name, name, arm, training, s = job
    began = time.process_time()
    task = load_task(prepared / f"{s}.npz")
    policy = make_triple_policy(params.start, policy_name, task, params.start.seed + s)
    load_model(policy, str(warm / f"{policy_name}.{s}.safetensors"))
    rows: Rows = []

    def look(number: int, told: dict[str, float]) -> None:
        if number % max(training.updates // 40, 1) == 0:
            rows.append((number, told))

    rng = np.random.default_rng([params.seed, s, crc32(f"{policy_name}.{name}".encode())])
    fine_tune_triples(policy, task, arm, training, rng, look)
    samples = policy.sample(params.samples, np.random.default_rng([params.seed, s, 4]))
    return samples, rows, time.process_time() - began
