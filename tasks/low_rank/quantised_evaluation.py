"""Node that measures the language model in low precision: factors trained through rounding, rounded factors, rounded dense weights.

All arms quantise the same projections (those that `source` factorised) and leave the rest of the network as it is. A precision is called
`w<weight bits>a<activation bits>`. Arms, by precision: `wsvd` rotates and trains the fine-tuned factors; `noq_rtn` rounds the same factors
to nearest, without rotation or training; `rtn` and `hadamard` round the dense weights, without and after a rotation of the input; `qsvd`
rounds a joint factorisation of equal parameters between two fixed rotations (its `float` is `qsvd_float`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import paired, summarise
from tasks.language_models.pretrained import load_model
from tasks.low_rank.attention import PROJECTIONS
from tasks.low_rank.calibration import statistics_file
from tasks.low_rank.checkpoints import load_factors
from tasks.low_rank.measurement import Quality, Reference
from tasks.low_rank.methods import JOINT, spectra_of, truncated
from tasks.low_rank.outliers import Rounded, inputs_of, outlier_figure, outliers, training_figure
from tasks.low_rank.prepared import sequences
from tasks.low_rank.quantised import PLAIN, ROTATED, in_place, quantised_modules, rounded_modules
from tasks.low_rank.statistics import check_layers, load_statistics
from tasks.low_rank.train import factors_file
from tasks.quantisation.quantised_training import Precision, QuantisationParams

DENSE = ("rtn", "hadamard")
SHOWN = 4
"""Sequences whose inputs and latents are looked at for outliers."""


class QuantisedParams(Params):
    """What is quantised and how.

    Attributes:
        seeds: as many as were trained, or fewer.
        source: arm of `train` whose selected factors are quantised.
        precisions: (weight bits, activation bits) of the factored arms.
        dense_precisions: the same for `rtn`, `hadamard` and `qsvd`.
        kept: share of the parameters that `qsvd` keeps, as `source` does.
        training: of `wsvd`; its bits are those of each precision.
        dtype: in which the model is run; what is quantised computes in float32.
        device: torch device.
        workers: processes, by default as many as the stage may use; a process takes seconds to start.
    """

    seeds: int = Field(4, ge=1)
    source: str = "wsvd_kv"
    precisions: tuple[Precision, ...] = Field(((8, 8),), min_length=1)
    dense_precisions: tuple[Precision, ...] = ((8, 8),)
    kept: float = Field(0.5, gt=0)
    training: QuantisationParams = QuantisationParams()
    dtype: str = "bfloat16"
    device: str = "cpu"
    workers: int | None = Field(None, ge=1)


def precision_name(bits: Sequence[int]) -> str:
    """How a precision is called.

    >>> precision_name((4, 8))
    'w4a8'
    """
    return f"w{bits[0]}a{bits[1]}"


def evaluate(params: QuantisedParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<arm>_<precision>.{kl_nats,nats}.smollm2` over seeds, and `objective.parquet` (seed, precision, step, objective).

    `<input|latent>_<plain|rotated>.peak_over_rms.smollm2` is the largest magnitude of a token's inputs or latents in the middle layer,
    over its root mean square (before any rounding; the first precision's rotations). Also `float.kl_nats.smollm2` (the factors as they
    are, in floating point) and, for each precision, the paired differences of `wsvd` to `noq_rtn`, `qsvd` and `float`, and of `hadamard` to
    `rtn`.
    """
    import pandas as pd

    items = [
        _Work(inputs["warmstart"], inputs["prepare"], inputs["train-calibrate"], inputs["train"], seed, params)
        for seed in range(params.seeds)
    ]
    found = list(log.progress(map_parallel(_measured, items, workers=params.workers), total=len(items), desc="seeds"))
    curve = pd.DataFrame([row for seed in found for row in seed.curve])
    write_parquet(out / "objective.parquet", curve)
    log.figure("outliers", outlier_figure(found[0].outliers))
    log.figure("quantised_training", training_figure(curve))
    metrics: Metrics = {}
    for arm in found[0].quality:
        for what in ("kl_nats", "nats"):
            metrics |= summarise(f"{arm}.{what}.smollm2", [getattr(seed.quality[arm], what) for seed in found])
    for part in found[0].outliers:
        metrics |= summarise(f"{part}.peak_over_rms.smollm2", [seed.outliers[part].peak for seed in found])
    for a, b in _pairs(list(found[0].quality)):
        values = [[seed.quality[arm].kl_nats for seed in found] for arm in (a, b)]
        metrics |= paired(f"{a}.kl_nats.smollm2-{b}.kl_nats.smollm2", *values)
    return metrics


def _pairs(arms: Sequence[str]) -> list[tuple[str, str]]:
    wanted = [("wsvd", "noq_rtn"), ("wsvd", "qsvd"), ("hadamard", "rtn")]
    found = [(arm, f"{b}_{arm.split('_')[-1]}") for arm in arms for a, b in wanted if arm.rsplit("_", 1)[0] == a]
    return [pair for pair in found if pair[1] in arms] + [(arm, "float") for arm in arms if arm.startswith("wsvd_")]


@dataclass(frozen=True)
class _Work:
    model: Path
    texts: Path
    statistics: Path
    factors: Path
    seed: int
    params: QuantisedParams


@dataclass(frozen=True)
class _Found:
    quality: dict[str, Quality]
    curve: list[dict[str, float | str]]
    outliers: dict[str, Rounded]


def _measured(work: _Work) -> _Found:
    params = work.params
    model, _ = load_model(work.model / "model", dtype=params.dtype, device=params.device)
    statistics = load_statistics(statistics_file(work.statistics, work.seed))
    blocks = check_layers(model, statistics)
    factors = load_factors(factors_file(work.factors, params.source, work.seed))
    ids = sequences(work.texts, work.seed, "evaluation").to(params.device)
    reference = Reference.of(model, ids)
    found = _Found({"float": reference.quality_with(model, factors)}, [], {})
    shown = next(key for key in factors if key[0] == len(blocks) // 2)
    seen = inputs_of(model, ids[:SHOWN], shown[0])
    for bits in params.precisions:
        name = precision_name(bits)
        for arm, base in (("wsvd", params.training), ("noq_rtn", PLAIN)):
            how = base.model_copy(update={"weight_bits": bits[0], "activation_bits": bits[1]})
            modules, trained = quantised_modules(factors, blocks, statistics, how, work.seed)
            with in_place(blocks, modules):
                found.quality[f"{arm}_{name}"] = reference.quality(model)
            if arm == "wsvd":
                mean = np.mean([part.objective for part in trained.values()], axis=0)
                if not found.outliers:
                    found.outliers.update(outliers(seen, factors[shown], trained[shown].latent_rotation))
                found.curve.extend({"seed": work.seed, "precision": name, "step": s, "objective": float(v)} for s, v in enumerate(mean))
    projections = tuple(p for p in PROJECTIONS if (shown[0], p) in factors)
    joint = truncated(JOINT, spectra_of(JOINT, blocks, statistics, projections), blocks, params.kept, None, projections)
    found.quality["qsvd_float"] = reference.quality_with(model, joint)
    for bits in params.dense_precisions:
        for arm in DENSE:
            with in_place(blocks, rounded_modules(blocks, projections, *bits, hadamard=arm == "hadamard")):
                found.quality[f"{arm}_{precision_name(bits)}"] = reference.quality(model)
        how = ROTATED.model_copy(update={"weight_bits": bits[0], "activation_bits": bits[1]})
        with in_place(blocks, quantised_modules(joint, blocks, statistics, how, work.seed)[0]):
            found.quality[f"qsvd_{precision_name(bits)}"] = reference.quality(model)
    return found
