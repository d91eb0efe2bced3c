"""Node that compresses and quantises tiny vision-language models and asks them questions about unseen images.

Every model of the warm start goes the whole way: calibration on grids with images and questions, factorisation per head, Fisher-weighted
fine-tuning with the iterate chosen on held-out grids, training through rounding. All arms of a model answer the same questions.

Arms: `dense`; `svdllm`, `head_white`, `unweighted` (fine-tuned without weights, last iterate) and `wsvd_noq` in floating point; in a
precision `w<b>a<b>`: `wsvd`, `noq_rtn`, `rtn`, `hadamard` as in `quantised_evaluation`; and, in one precision, `wsvd` without one of its
parts: `no_s1` (no rotation of the input), `no_s2` (none of the latents), `fixed_s2` (a random one that is not learned), `no_qat` (rotated,
not trained).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import paired, summarise
from tasks.low_rank.attention import AttentionBlock, Projection, attention_blocks
from tasks.low_rank.collector import Batch, LayerStatistics
from tasks.low_rank.fine_tuning import element_weights
from tasks.low_rank.layers import merged
from tasks.low_rank.methods import Method, ModelFactors, spectra_of, truncated
from tasks.low_rank.quantised import PLAIN, Modules, in_place, quantised_modules, rounded_modules
from tasks.low_rank.quantised_evaluation import precision_name
from tasks.low_rank.selection import Tuned, tune_model
from tasks.low_rank.statistics import calibrate
from tasks.quantisation.quantised_training import Precision, QuantisationParams
from tasks.quantisation.rotations import block_rotation
from tasks.vision_language.digit_grid import Digits, Grids, Kind, draw_grids, split_digits
from tasks.vision_language.scoring import answer_logits, hits_of
from tasks.vision_language.tiny_llava import load_tiny_llava

PARTS: dict[str, dict[str, Any]] = {
    "no_s1": {"rotate_input": False},
    "no_s2": {"latent_rotation": "none"},
    "fixed_s2": {"latent_rotation": "fixed"},
    "no_qat": {"steps": 0},
}
"""What `wsvd` is without one of its parts."""

METHODS: tuple[Method, ...] = ("svdllm", "head_white")


class VisionLanguageParams(Params):
    """How the models are compressed and asked.

    Attributes:
        seeds: models of the warm start that are taken.
        kinds: of question, as the models were trained.
        kept: rho1 of the factorised projections.
        projections: which are factorised.
        calibration: images from which statistics are taken, each a sample with `turns` questions.
        held_out: images on which an iterate is chosen.
        turns: questions per calibration image.
        questions: on which models are compared.
        test_turns: so many of them are about one image, each asked by itself.
        steps: of fine-tuning.
        rate: of fine-tuning.
        keep_every: iterates among which held-out images choose.
        precisions: (weight bits, activation bits).
        ablated: the one of them in which `wsvd` is also tried without one of its parts.
        training: of `wsvd`; its bits are those of each precision.
        workers: processes, by default as many as the stage may use; a process takes seconds to start.
    """

    seeds: int = Field(3, ge=1)
    kinds: tuple[Kind, ...] = ("read",)
    kept: float = Field(0.5, gt=0)
    projections: tuple[Projection, ...] = ("k", "v")
    calibration: int = Field(128, ge=1)
    held_out: int = Field(64, ge=1)
    turns: int = Field(4, ge=1)
    questions: int = Field(2000, ge=1)
    test_turns: int = Field(8, ge=1)
    steps: int = Field(100, ge=1)
    rate: float = Field(1e-3, gt=0)
    keep_every: int = Field(25, ge=1)
    precisions: tuple[Precision, ...] = Field(((8, 8), (4, 8), (2, 8)), min_length=1)
    ablated: Precision = (2, 8)
    training: QuantisationParams = QuantisationParams()
    workers: int | None = Field(None, ge=1)


def evaluate(params: VisionLanguageParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<arm>.{accuracy,kl_nats}.digit_grid` over models, and paired differences to `wsvd_noq` and within precisions.

    `kl_nats` is the divergence of the answer from the dense model's, over all test questions.
    """
    items = [(params, inputs.file("warmstart-vlm", f"seed{seed}"), seed) for seed in range(params.seeds)]
    found = list(log.progress(map_parallel(_measured, items, workers=params.workers), total=len(items), desc="models"))
    metrics: Metrics = {}
    for what in ("accuracy", "kl_nats"):
        values = {arm: [float(getattr(one[arm], what)) for one in found] for arm in found[0]}
        for arm, numbers in values.items():
            metrics |= summarise(f"{arm}.{what}.digit_grid", numbers)
        for a, b in _pairs(list(values)):
            metrics |= paired(f"{a}.{what}.digit_grid-{b}.{what}.digit_grid", values[a], values[b])
    log.figure("vlm_accuracy", accuracy_figure(metrics, list(found[0])))
    return metrics


def _pairs(arms: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield from (("wsvd_noq", "head_white"), ("wsvd_noq", "unweighted"), ("wsvd_noq", "dense"), ("head_white", "svdllm"))
    for arm in arms:
        name, _, precision = arm.rpartition("_w")
        if name == "wsvd":
            yield arm, "wsvd_noq"
            yield from ((arm, other) for part in ("noq_rtn", *PARTS) if (other := f"{part}_w{precision}") in arms)
        elif name == "hadamard":
            yield arm, f"rtn_w{precision}"


@dataclass(frozen=True)
class Answers:
    """How an arm answered: right ones as 0 and 1, (questions,), and its mean divergence from the dense model."""

    hits: np.ndarray
    kl_nats: float

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return float(self.hits.mean())


class Asked:
    """Test questions and what the dense model says of them."""

    def __init__(self, model: Any, grids: Grids) -> None:
        self.grids, self.logp = grids, answer_logits(model, grids).log_softmax(-1)

    def answers(self, model: Any) -> Answers:
        """Ask a model."""
        found = answer_logits(model, self.grids).log_softmax(-1)
        divergence = float((self.logp.exp() * (self.logp - found)).sum(-1).double().mean())
        return Answers(hits_of(found, self.grids), max(divergence, 0.0))


def _measured(item: tuple[VisionLanguageParams, Path, int]) -> dict[str, Answers]:
    params, folder, seed = item
    model = load_tiny_llava(folder)
    known, test = split_digits(seed)
    blocks = attention_blocks(model)
    statistics = calibrated(model, known, params, seed)
    asked = Asked(
        model,
        draw_grids(test, -(-params.questions // params.test_turns), params.test_turns, params.kinds, np.random.default_rng([seed, 5])),
    )
    found = {"dense": asked.answers(model)}
    floating = floating_arms(model, blocks, statistics, known, params, seed)
    for arm, factors in floating.items():
        with merged(model, factors):
            found[arm] = asked.answers(model)
    for bits in params.precisions:
        for arm, modules in quantised_arms(floating["wsvd_noq"], blocks, statistics, params, bits, seed).items():
            with in_place(blocks, modules):
                found[f"{arm}_{precision_name(bits)}"] = asked.answers(model)
    return found


def calibrated(model: Any, scans: Digits, params: VisionLanguageParams, seed: int) -> list[LayerStatistics]:
    """Statistics on grids with images; the loss counts answers alone."""
    grids = draw_grids(scans, params.calibration, params.turns, params.kinds, np.random.default_rng([seed, 3]))
    batches: list[Batch] = [grids.batch(slice(start, start + 16)) for start in range(0, params.calibration, 16)]
    rotation = block_rotation(attention_blocks(model)[0].hidden)
    return calibrate(model, batches, rotation=rotation)


def floating_arms(
    model: Any,
    blocks: list[AttentionBlock],
    statistics: list[LayerStatistics],
    scans: Digits,
    params: VisionLanguageParams,
    seed: int,
) -> dict[str, ModelFactors]:
    """Factors of every arm in floating point, by name."""
    found: dict[str, ModelFactors] = {}
    for method in METHODS:
        spectra = spectra_of(method, blocks, statistics, params.projections)
        found[method] = truncated(method, spectra, blocks, params.kept, None, params.projections)

    def tuned(weighting: Any) -> Tuned:
        def weights(layer: int, p: Projection) -> torch.Tensor:
            return element_weights(statistics[layer].fisher[p], weighting)

        return tune_model(blocks, found["head_white"], weights, steps=params.steps, rate=params.rate, keep_every=params.keep_every)

    weighted = tuned("element")
    held_out = Asked(model, draw_grids(scans, params.held_out, params.turns, params.kinds, np.random.default_rng([seed, 4])))
    curve = {}
    for step in weighted.kept:
        with merged(model, weighted.factors(step, best=True)):
            curve[step] = held_out.answers(model).kl_nats
    found["wsvd_noq"] = weighted.factors(min(curve, key=lambda step: (curve[step], step)), best=True)
    found["unweighted"] = tuned("none").factors(params.steps)
    return found


def quantised_arms(
    factors: ModelFactors,
    blocks: list[AttentionBlock],
    statistics: list[LayerStatistics],
    params: VisionLanguageParams,
    bits: Sequence[int],
    seed: int,
) -> dict[str, Modules]:
    """Modules of every arm in one precision, by name."""
    widths = {"weight_bits": bits[0], "activation_bits": bits[1]}
    ways = {"wsvd": params.training, "noq_rtn": PLAIN}
    if tuple(bits) == params.ablated:
        ways |= {part: params.training.model_copy(update=without) for part, without in PARTS.items()}
    found = {arm: quantised_modules(factors, blocks, statistics, how.model_copy(update=widths), seed)[0] for arm, how in ways.items()}
    for arm in ("rtn", "hadamard"):
        found[arm] = rounded_modules(blocks, params.projections, *bits, hadamard=arm == "hadamard")
    return found


def accuracy_figure(metrics: Mapping[str, float], arms: Sequence[str]) -> Any:
    """Accuracy of every arm, mean over models with its interval."""
    from tasks.common.plotting import COLOURS, figure

    sheet, ax = figure(7.0, 0.24 * len(arms) + 1.2)
    for row, arm in enumerate(arms):
        name = f"{arm}.accuracy.digit_grid"
        mean = metrics[name]
        low, high = metrics.get(f"{name}.lo", mean), metrics.get(f"{name}.hi", mean)
        colour = COLOURS[1] if arm.startswith("wsvd") else COLOURS[7] if arm == "dense" else COLOURS[0]
        ax.errorbar(mean, row, xerr=[[mean - low], [high - mean]], fmt="o", color=colour, capsize=3)
    ax.set_yticks(range(len(arms)), arms)
    ax.invert_yaxis()
    ax.set_xlabel("share of right answers on unseen scans")
    return sheet
