"""Stage before offline-RL distillation: banks of random predictors, the training sets' losses on them, and the first rows.

Banks are a pure function of the parameters, so that only their losses are kept; later stages draw them again.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
from pydantic import Field, model_validator

from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.distillation.bellman import bellman_losses, relative_loss_error
from tasks.distillation.predictors import AnyBank, BankConfig, draw_bank, to
from tasks.distillation.subsets import random_rows, stratified_rows
from tasks.offline_rl.environments import control_task
from tasks.offline_rl.transitions import Standardiser, TdBatch, read_transitions, td_batch

BANKS = {
    "rff": BankConfig(),
    "rff_scaled": BankConfig(scale_low=0.03),
    "mlp": BankConfig(family="mlp", features=32, k=200),
    "no_reward_scale": BankConfig(reward_scale="one"),
    "no_terminals": BankConfig(terminals=False),
    "values_only": BankConfig(reward_scale="zero", bootstrap=False),
    "heldout": BankConfig(),
    "heldout_features": BankConfig(own_features=True),
    "heldout_mlp": BankConfig(family="mlp", features=32),
}
STARTS = ("random", "stratified")


class BellmanStartParams(Params):
    """Data sets, sizes and banks.

    Attributes:
        environments: names of `tasks.offline_rl.environments`.
        seeds: data sets per environment.
        sizes: numbers m of synthetic transitions.
        predictors: size k of a bank that names none.
        heldout: size of the banks called `heldout*`.
        banks: laws of predictors by name; `heldout*` are for judging alone.
        seed: of everything random.
        device: where torch works.
    """

    environments: tuple[str, ...] = Field(("cartpole", "acrobot", "mountaincar"), min_length=1)
    seeds: int = Field(5, ge=1)
    sizes: tuple[int, ...] = Field((30, 100, 300), min_length=1)
    predictors: int = Field(1000, ge=1)
    heldout: int = Field(400, ge=1)
    banks: dict[str, BankConfig] = Field(BANKS)
    seed: int = Field(0, ge=0)
    device: str = "cpu"

    @model_validator(mode="after")
    def _has_heldout(self) -> BellmanStartParams:
        if "heldout" not in self.banks:
            raise ValueError(f"banks must include one called 'heldout' to judge by, got {sorted(self.banks)}")
        return self


def load_batch(folder: Path, environment: str, seed: int) -> tuple[TdBatch, Standardiser]:
    """A prepared data set as learners see it, and the units of its states."""
    data = read_transitions(folder / f"{environment}.{seed}.parquet")
    standardise = Standardiser.of(data.obs)
    return td_batch(data, standardise, control_task(environment).learning_reward(data)), standardise


def bank_for(params: BellmanStartParams, name: str, environment: str, seed: int, batch: TdBatch, k: int | None = None) -> AnyBank:
    """The bank `name` (its first k predictors) for one data set; the same however often it is drawn.

    A class of functions has fixed features (Theorem 4.3), so all rff banks of a data set share theirs, held-out ones too; fresh are
    coefficients and reward scales. Only `own_features` asks for another class.

    Reward scales are relative to the root mean square of the learning reward, which for rare rewards is their spread and for
    a constant step cost still makes reward and value terms of one size.

    Raises:
        ValueError: if the bank holds fewer than k.
    """
    config = params.banks[name]
    family = zlib.crc32((name if name.startswith("heldout") else config.family).encode())
    where = [zlib.crc32(environment.encode()), seed]
    rng = np.random.default_rng([params.seed, family, *where])
    features = None if config.own_features else np.random.default_rng([params.seed, zlib.crc32(b"features"), *where])
    n_actions = int(control_task(environment).make().action_space.n)
    size = config.k or (params.heldout if name.startswith("heldout") else params.predictors)
    bank = draw_bank(config, size, batch.obs.shape[1], n_actions, float(np.sqrt(np.mean(batch.reward**2))), rng, features)
    if k is not None and k > size:
        raise ValueError(f"bank {name!r} holds {size} predictors, asked for {k}; raise `predictors`")
    return to(bank if k is None else bank.first(k), bank.reward_scale.dtype, params.device)


def warmstart(params: BellmanStartParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<environment>.<seed>.safetensors` with `losses.<bank>` (k,), `random.<m>` and `stratified.<m>` (m,) row indices.

    Metrics: `<start>.start_loss_error.<env>_n<m>`, held-out, of the undistilled subsets.
    """
    jobs = [(params, inputs["prepare-transitions"], out, e, s) for e in params.environments for s in range(params.seeds)]
    done = list(log.progress(map_parallel(_start, jobs), total=len(jobs), desc="predictors"))
    metrics: Metrics = {}
    for environment in params.environments:
        errors = [e for (_, _, _, name, _), e in zip(jobs, done, strict=True) if name == environment]
        for key in errors[0]:
            metrics |= summarise(f"{key[0]}.start_loss_error.{environment}_n{key[1]}", [e[key] for e in errors])
    return metrics


def _start(job: tuple[BellmanStartParams, Path, Path, str, int]) -> dict[tuple[str, int], float]:
    from safetensors.numpy import save_file

    params, folder, out, environment, seed = job
    batch, _ = load_batch(folder, environment, seed)
    gamma = control_task(environment).gamma
    banks = {name: bank_for(params, name, environment, seed, batch) for name in params.banks}
    kept = {f"losses.{n}": bellman_losses(batch, b, gamma, params.banks[n]) for n, b in banks.items()}
    rng = np.random.default_rng([params.seed, zlib.crc32(environment.encode()), seed, 1])
    errors = {}
    for size in params.sizes:
        rows = {"random": random_rows(len(batch), size, rng), "stratified": stratified_rows(batch.continuation, size, rng)}
        for start in STARTS:
            kept[f"{start}.{size}"] = rows[start]
            losses = bellman_losses(batch.take(rows[start]), banks["heldout"], gamma)
            errors[start, size] = relative_loss_error(losses, kept["losses.heldout"])
    save_file(kept, out / f"{environment}.{seed}.safetensors")
    return errors
