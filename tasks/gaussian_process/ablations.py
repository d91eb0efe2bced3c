"""Training stage of the ablations: DBVI and DDVI with one thing changed at a time, on one data set, with equal seeds and steps.

Arms are called `<method>_<variant>`. `VARIANTS` says what each changes; `base` changes nothing. DSVI is run where the variant
concerns the model and not the diffusion.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, field_validator

from tasks.common.node import Inputs, Log, Metrics
from tasks.common.statistics import summarise
from tasks.gaussian_process.deep_gp import DeepGP
from tasks.gaussian_process.diffusion_bridge import BridgeParams
from tasks.gaussian_process.experiment import (
    Architecture,
    Outcome,
    SetParams,
    TrainParams,
    Work,
    groups,
    load_shared,
    read_warm,
    run_stage,
    tables,
)
from tasks.gaussian_process.problem import Problem
from tasks.gaussian_process.train_bridge import CENTERS, bridge_model
from tasks.gaussian_process.training import FitParams
from tasks.gaussian_process.training import train as fit_model
from tasks.gaussian_process.warmstart import gaussian_model, warm_state

P = TypeVar("P", Architecture, BridgeParams, FitParams)

BRIDGES = ("dbvi", "ddvi")


@dataclass(frozen=True)
class Variant:
    """What is changed.

    Attributes:
        bridge: fields of `BridgeParams`.
        architecture: fields of `Architecture`.
        fit: fields of `FitParams`.
        warm: False trains from the first initialisation.
        methods: which methods it is run for.
    """

    bridge: dict[str, Any] = field(default_factory=dict)
    architecture: dict[str, Any] = field(default_factory=dict)
    fit: dict[str, Any] = field(default_factory=dict)
    warm: bool = True
    methods: tuple[str, ...] = BRIDGES


VARIANTS: dict[str, Variant] = {
    "base": Variant(methods=(*BRIDGES, "dsvi")),
    "sigma_01": Variant(bridge={"sigma": 0.1}),
    "sigma_1": Variant(bridge={"sigma": 1.0}),
    "learned_sigma": Variant(bridge={"learn_sigma": True}),
    "no_doob": Variant(bridge={"doob": False}),
    "start_paper": Variant(bridge={"start": "paper"}),
    "euler": Variant(bridge={"integrator": "euler"}),
    "literal": Variant(bridge={"integrator": "euler", "start": "paper"}),
    "unwhitened": Variant(bridge={"whiten": False}),
    "script": Variant(fit={"objective": "dsm"}),
    **{f"k{steps}": Variant(bridge={"steps": steps}) for steps in (1, 2, 5, 20)},
    "m16": Variant(architecture={"inducing": 16}),
    "m64": Variant(architecture={"inducing": 64}),
    "random_z": Variant(architecture={"start": "random"}),
    "cold": Variant(warm=False, methods=(*BRIDGES, "dsvi")),
    "one_layer": Variant(architecture={"depth": 1}, methods=(*BRIDGES, "dsvi")),
    "three_layers": Variant(architecture={"depth": 3}),
}


class AblationParams(TrainParams):
    """As `TrainParams`.

    Attributes:
        variants: of `VARIANTS`.
        bridge: the diffusion that variants change.
        warm_steps: of DSVI, for variants whose model is not the one that the warm-start stage trained.
    """

    data: dict[str, SetParams] = Field({"concrete": SetParams(seeds=5, steps=300)}, min_length=1)
    variants: tuple[str, ...] = tuple(VARIANTS)
    bridge: BridgeParams = BridgeParams()
    warm_steps: int = Field(100, ge=1)

    @field_validator("variants")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in names if name not in VARIANTS]:
            raise ValueError(f"unknown variants {unknown}; known: {', '.join(VARIANTS)}")
        return names


@dataclass(frozen=True)
class _Arm(Work):
    variant: str
    method: str


def train(params: AblationParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `runs.parquet` and `curves.parquet`; reports `<method>_<variant>.<quantity>.<data>`."""
    items = [
        _Arm(inputs["prepare"], inputs["warmstart"], name, params, variant, method)
        for variant in params.variants
        for method in VARIANTS[variant].methods
        for name in params.data
    ]
    done = run_stage(_one, items, params.device, out, log)
    metrics: Metrics = {}
    for arm, name, quantity, values in groups(done.runs):
        if quantity in ("elbo", "kl", "rmse", "nll", "coverage", "accuracy"):
            metrics |= summarise(f"{arm}.{quantity}.{name}", values)
    return metrics


def _one(item: _Arm) -> Outcome:
    params, variant = item.params, VARIANTS[item.variant]
    assert isinstance(params, AblationParams)
    problem, architecture = item.problem(), changed(params.architecture, variant.architecture)
    fit = changed(params.fit, variant.fit)
    model = _model(item, problem, architecture, params.bridge)
    if variant.warm and variant.architecture:
        load_shared(model, warm_state(problem, architecture, params.fit, item.seeds, params.warm_steps)[0])
    elif variant.warm:
        load_shared(model, read_warm(item.warm, item.name, len(item.seeds)))
    before = time.perf_counter()
    done = fit_model(model, problem, fit, item.steps, item.seeds)
    arm = f"{item.method}_{item.variant}"
    seconds = (time.perf_counter() - before) / item.steps
    return Outcome(*tables(arm, item.name, item.seeds, done), {f"{arm}_{item.name}": seconds})


def _model(item: _Arm, problem: Problem, architecture: Architecture, bridge: BridgeParams) -> DeepGP:
    if item.method == "dsvi":
        return gaussian_model(problem, architecture, item.seeds)
    changes = VARIANTS[item.variant].bridge | {"center": CENTERS[item.method]}
    return bridge_model(problem, architecture, item.seeds, changed(bridge, changes))


def changed(params: P, changes: dict[str, Any]) -> P:
    """The same parameters with some fields replaced, validated again."""
    return type(params)(**(params.model_dump() | changes))
