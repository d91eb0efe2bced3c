"""Weighted low-rank attention: docs/papers/wsvd.md, https://arxiv.org/abs/2604.02570.

Projections of queries, keys and values factorised head by head, fine-tuned with element-wise Fisher weights, quantised, and decoded from
latents.
"""

from __future__ import annotations

import math
from typing import Any

from flows.engine.checks import Check, all_of, at_least, at_most, better_than, first_measured
from flows.engine.declare import Claim, Control, Deviation, Paper, Profile, Stage, braces

CLOSED = (
    *("svd_r50", "asvd_r50", "fwsvd_r50", "diagonal_r50", "permuted_r50", "svdllm_r50", "qsvd_r50", "qsvd_global_r50"),
    *("qsvd_same_cache", "head_svd_r50", "head_white_global_r50"),
    *(f"head_white_r{r}" for r in (50, 60, 70, 80, 90)),
    *("head_white_kv", "head_white_global_kv", "svdllm_kv", "head_white_4_kv", "head_white_12_kv"),
)
"""Closed-form arms: `_r50` keeps half of the parameters of queries, keys and values, `_kv` of keys and values; `_4` and `_12`
have moments from so many calibration sequences."""

TUNED = ("wsvd_kv", "row_kv", "unweighted_kv", "shuffled_kv", "first_order_kv", "plain_start_kv", "wsvd_r50")
SELECTED = ("wsvd_kv", "row_kv", "first_order_kv", "plain_start_kv", "wsvd_r50")
LAST = ("wsvd_kv_last", "row_kv_last", "unweighted_kv_last", "shuffled_kv_last")
PAIRS = (
    *(("wsvd_kv", "head_white_kv"), ("unweighted_kv_last", "head_white_kv"), ("wsvd_kv_last", "unweighted_kv_last")),
    *(("wsvd_kv_last", "head_white_kv"), ("wsvd_kv_last", "row_kv_last"), ("shuffled_kv_last", "unweighted_kv_last")),
    *(("shuffled_kv_last", "head_white_kv"), ("unweighted_kv_last", "row_kv_last")),
    *(("head_white_kv", "svdllm_kv"), ("svd_r50", "svdllm_r50"), ("asvd_r50", "svdllm_r50")),
    *(("svd_r50", "diagonal_r50"), ("asvd_r50", "diagonal_r50"), ("diagonal_r50", "svdllm_r50")),
    *(("svd_r50", "permuted_r50"), ("asvd_r50", "permuted_r50")),
    *((f"head_white_r{b}", f"head_white_r{a}") for a, b in ((50, 60), (60, 70), (70, 80), (80, 90))),
    *(("wsvd_r50", "qsvd_global_r50"), ("wsvd_r50", "qsvd_same_cache"), ("wsvd_r50", "head_white_global_r50")),
    *(("first_order_kv", "wsvd_kv"), ("plain_start_kv", "wsvd_kv")),
    *((f"head_white_{n}_kv", "head_white_kv") for n in (4, 12)),
)
"""Differences of arms over the same text; `pairs` of the evaluation's parameters."""

MODELS = {"llava": "llava157bhf", "llava_next": "llavav16vicuna7bhf", "smolvlm": "smolvlminstruct"}
"""Vision-language models of the gpu profile: stage's name -> how its metrics call it."""

RATIOS = (50, 60, 70, 80, 90)
ASKED = ("asvd", "svdllm", "qsvd_global", "head_white_global", "wsvd")

LENGTHS: dict[Profile, tuple[str, ...]] = {"cpu": ("8k", "32k"), "smoke": ("128", "256"), "gpu": ("8k", "32k")}


def real_model(stage: str, name: str) -> list[Stage]:
    """Stages of one of the paper's models: compressed, then asked."""
    arms = braces(*(f"{method}_r{r}" for method in ASKED for r in RATIOS))
    sets = braces(*(f"{data}_{name}" for data in ("scienceqa", "seed_bench")))
    nodes = "tasks.low_rank.vision_language_models"
    differences = [
        f"{method}_r{r}.accuracy.{data}_{name}-dense.accuracy.{data}_{name}"
        for method in ASKED
        for r in RATIOS
        for data in ("scienceqa", "seed_bench")
    ]
    tuned = braces(*(f"wsvd_r{r}" for r in RATIOS))
    return [
        Stage(
            f"train-{stage}",
            f"{nodes}:train",
            budget_min=90,
            device="gpu",
            profiles=("gpu",),
            metrics=[f"fit_{tuned}.{{start,objective}}.{name}"],
        ),
        Stage(
            f"evaluate-{stage}",
            f"{nodes}:evaluate",
            needs=[f"train-{stage}"],
            budget_min=600,
            device="gpu",
            profiles=("gpu",),
            metrics=[f"dense.accuracy.{sets}", f"{arms}.accuracy.{sets}", f"{arms}.{{param_ratio,cache_ratio}}.{name}", *differences],
        ),
    ]


def per_head_is_faster(length: str) -> Check:
    """At half of the cache, decoding from latents per head beats dense decoding by half, and re-reading a shared latent loses to it."""
    return at_least(f"per_head_32.speedup.{length}", 1.5) & at_most(f"shared_reread.speedup.{length}", 1.0)


QUANTISED = [
    "{float,qsvd_float,qsvd_w8a8,wsvd_w8a8,noq_rtn_w8a8,rtn_w8a8,hadamard_w8a8}.{kl_nats,nats}.smollm2",
    *(f"wsvd_w8a8.kl_nats.smollm2-{a}.kl_nats.smollm2" for a in ("noq_rtn_w8a8", "float", "qsvd_w8a8")),
    "hadamard_w8a8.kl_nats.smollm2-rtn_w8a8.kl_nats.smollm2",
    "{input,latent}_{plain,rotated}.peak_over_rms.smollm2",
]
"""What `evaluate-quantised` reports."""

FLOATING = ("svdllm", "head_white", "unweighted", "wsvd_noq")
ROUNDED = ("wsvd", "noq_rtn", "rtn", "hadamard")
WITHOUT = ("no_s1", "no_s2", "fixed_s2", "no_qat")
PRECISIONS = ("w8a8", "w4a8", "w2a8")
ANSWERING = ("dense", *FLOATING, *(f"{arm}_{b}" for arm in ROUNDED for b in PRECISIONS), *(f"{part}_w2a8" for part in WITHOUT))
ANSWER_PAIRS = (
    *(("wsvd_noq", other) for other in ("head_white", "unweighted", "dense")),
    ("head_white", "svdllm"),
    *((f"wsvd_{b}", other) for b in PRECISIONS for other in ("wsvd_noq", f"noq_rtn_{b}")),
    *(("wsvd_w2a8", f"{part}_w2a8") for part in WITHOUT),
    *((f"hadamard_{b}", f"rtn_{b}") for b in PRECISIONS),
)
ANSWERED = [
    f"{braces(*ANSWERING)}.{{accuracy,kl_nats}}.digit_grid",
    *(f"{a}.{what}.digit_grid-{b}.{what}.digit_grid" for a, b in ANSWER_PAIRS for what in ("accuracy", "kl_nats")),
]
"""What `evaluate-vlm` reports."""

TWO_BITS = "wsvd_w2a8.accuracy.digit_grid-wsvd_noq.accuracy.digit_grid"

REAL = (
    "real weights of a 135-million-parameter model instead of LLaVA-7B; three draws of calibration and evaluation text, so that intervals "
    "speak of text, not of models"
)

paper = Paper(
    slug="wsvd",
    title="WSVD: Weighted Low-Rank Approximation for Fast and Efficient Execution of Low-Precision Vision-Language Models",
    arxiv="2604.02570",
    openreview="zrmQ4koOw9",
    apply="tasks.low_rank.apply:compress",
    summary=(
        "Each head's query, key and value projection becomes a product of two thin matrices, so that decoding reads short latents "
        "per head instead of keys and values. A truncated SVD of whitened weights is fine-tuned, layer by layer and without data, on an "
        "error weighted element by element with the loss's Fisher information, then trained through 8-bit rounding between two rotations."
    ),
    figures=(
        *("divergence_by_ratio", "objective_and_held_out", "latency", "ablations", "outliers", "quantised_training", "vlm_accuracy"),
        *("errors_by_layer", "spectra", "ranks", "bytes_read"),
    ),
    stages=[
        Stage("warmstart", shared="smollm2"),
        Stage(
            "prepare",
            "tasks.low_rank.prepared:prepare",
            needs=["warmstart"],
            budget_min=1,
            metrics=["texts.{sequences,tokens,fingerprint}"],
        ),
        Stage(
            "train-calibrate",
            "tasks.low_rank.calibration:calibrate",
            needs=["warmstart", "prepare"],
            budget_min=4,
            device="gpu",
            metrics=["fisher.{tail,zeros}.{q,k,v}"],
        ),
        Stage(
            "train",
            "tasks.low_rank.train:train",
            needs=["warmstart", "prepare", "train-calibrate"],
            budget_min=8,
            device="gpu",
            metrics=[f"fit_{braces(*TUNED)}.{{selected_step,held_out_kl_nats,objective}}.smollm2"],
        ),
        Stage(
            "evaluate",
            "tasks.low_rank.comparison:evaluate",
            needs=["warmstart", "prepare", "train-calibrate", "train"],
            budget_min=8,
            device="gpu",
            metrics=[
                f"{braces(*CLOSED, *SELECTED, *LAST)}.{{kl_nats,nats,perplexity,param_ratio,cache_ratio}}.smollm2",
                f"{braces(*CLOSED, *SELECTED, *LAST)}.{{weight_err,act_err,fisher_err}}.smollm2",
                "dense.{kl_nats,nats,perplexity}.smollm2",
                f"{braces(*TUNED)}.fisher_err_dropped.smollm2",
                "{wsvd_kv,unweighted_kv,shuffled_kv,first_order_kv,plain_start_kv}.below_row.smollm2",
                *(f"{a}.{q}.smollm2-{b}.{q}.smollm2" for a, b in PAIRS for q in ("kl_nats", "nats", "fisher_err")),
            ],
        ),
        Stage(
            "warmstart-vlm",
            "tasks.vision_language.tiny_llava:train",
            budget_min=8,
            metrics=["vlm.accuracy.read"],
        ),
        Stage(
            "evaluate-quantised",
            "tasks.low_rank.quantised_evaluation:evaluate",
            needs=["warmstart", "prepare", "train-calibrate", "train"],
            budget_min=6,
            metrics=QUANTISED,
        ),
        Stage(
            "evaluate-vlm",
            "tasks.low_rank.vision_language_evaluation:evaluate",
            needs=["warmstart-vlm"],
            budget_min=8,
            metrics=ANSWERED,
        ),
        *(stage for name, called in MODELS.items() for stage in real_model(name, called)),
        Stage(
            "evaluate-speed",
            "tasks.low_rank.speed:evaluate",
            budget_min=3,
            metrics_in={
                profile: [
                    f"{{sdpa,dense,per_head_32,per_head_48,shared_reread,shared_once,values_32,rotary_32}}.{{ms,read_mb}}.{braces(*lengths)}",
                    "{per_head_32,per_head_48,shared_reread,shared_once,values_32,rotary_32}.{speedup,speedup_sdpa}." + braces(*lengths),
                ]
                for profile, lengths in LENGTHS.items()
            },
        ),
    ],
    claims=[
        Claim(
            "whitening_is_needed",
            "At half of the parameters, plain SVD and ASVD have more than five times the perplexity of whitened SVD.",
            paper_says="LLaVA-v1.5-7B, mean accuracy over five ratios: ASVD 42.05, SVD-LLM 58.47",
            check=all_of(*(at_least(f"{a}_r50.nats.smollm2-svdllm_r50.nats.smollm2", math.log(5)) for a in ("svd", "asvd"))),
            scale="reduced",
            why_scale=REAL,
            control=Control(
                "whitened with the statistics of other channels",
                check=all_of(*(at_least(f"{a}_r50.nats.smollm2-permuted_r50.nats.smollm2", math.log(5)) for a in ("svd", "asvd"))),
            ),
        ),
        Claim(
            "fine_tuning_helps",
            "Fisher-weighted fine-tuning lowers the weighted error of every projection in every layer, and the divergence.",
            paper_says="ScienceQA-IMG, LLaVA-Next-7B at rho1 = 0.5: 66.46 without, 67.87 with fine-tuning",
            check=at_least("wsvd_kv.fisher_err_dropped.smollm2", 1.0)
            & better_than("wsvd_kv.kl_nats.smollm2", "head_white_kv.kl_nats.smollm2"),
            scale="reduced",
            why_scale=REAL,
            control=Control(
                "all weights of the objective are one",
                check=at_least("unweighted_kv.fisher_err_dropped.smollm2", 1.0)
                & better_than("unweighted_kv_last.kl_nats.smollm2", "head_white_kv.kl_nats.smollm2"),
            ),
        ),
        Claim(
            "weights_make_it_work",
            "After equal steps, and without a choice among iterates, the weighted objective leaves a lower divergence than the unweighted "
            "one, and than its start.",
            paper_says="the weighting is the method's first contribution (no number without it)",
            check=all_of(
                better_than("wsvd_kv_last.kl_nats.smollm2", "unweighted_kv_last.kl_nats.smollm2"),
                better_than("wsvd_kv_last.kl_nats.smollm2", "head_white_kv.kl_nats.smollm2"),
            ),
            scale="reduced",
            why_scale=REAL,
            control=Control("the same weights in random places", swap={"wsvd_kv_last": "shuffled_kv_last"}),
        ),
        Claim(
            "elements_beat_rows",
            "Element-wise weights leave a lower Fisher-weighted error than row-wise ones, on average and in nine of ten projections, at a "
            "divergence that is not higher.",
            paper_says="element-wise weights are used because row-wise ones lose the importance within a row (no number)",
            check=all_of(
                better_than("wsvd_kv_last.fisher_err.smollm2", "row_kv_last.fisher_err.smollm2"),
                at_least("wsvd_kv.below_row.smollm2", 0.9),
                at_most("wsvd_kv_last.kl_nats.smollm2-row_kv_last.kl_nats.smollm2", 0.0),
            ),
            scale="reduced",
            why_scale=REAL,
            control=Control(
                "all weights of the objective are one",
                check=all_of(
                    better_than("unweighted_kv_last.fisher_err.smollm2", "row_kv_last.fisher_err.smollm2"),
                    at_least("unweighted_kv.below_row.smollm2", 0.9),
                ),
            ),
        ),
        Claim(
            "per_head_decodes_faster",
            "One latent per head at half of the cache decodes at least 1.5 times as fast as dense attention by the same kernel; one latent "
            "for all heads, read by each of them, is slower than dense.",
            paper_says="one layer, batch 16, 8,192 tokens: 1.8 to 2.6 times as fast as flash decoding on RTX 4090 and 5090",
            check=first_measured(*(all_of(*(per_head_is_faster(n) for n in LENGTHS[p])) for p in ("cpu", "smoke"))),
            scale="reduced",
            why_scale="decoding without rotary positions on one CPU thread, where attention is bound by memory as on a GPU",
            control=Control("one latent for all heads, read by each", swap={"per_head_32": "shared_reread"}),
        ),
        Claim(
            "eight_bits_are_enough",
            "With 8-bit weights and activations, factors trained between rotations diverge no more than when rounded to nearest, "
            "and answer questions about images at most one point worse than in floating point.",
            paper_says="mean of four LLaVA models at half of parameters and cache: WSVD 67.10, floating point 68.23",
            check=all_of(
                at_most("wsvd_w8a8.kl_nats.smollm2-noq_rtn_w8a8.kl_nats.smollm2", 0.0),
                at_least("wsvd_w8a8.accuracy.digit_grid-wsvd_noq.accuracy.digit_grid", -0.01),
            ),
            scale="toy",
            why_scale="real language weights of a small model, and a vision-language model of a million parameters on real digits; each of "
            "three of these answers the same 2,000 questions in both precisions",
            control=Control("two bits for weights", check=at_least(TWO_BITS, -0.01)),
        ),
        Claim(
            "more_parameters_are_better",
            "The divergence falls with every step of the ratio from 0.5 to 0.9.",
            paper_says="accuracy falls as rho1 goes from 90 % to 50 % (tables)",
            check=all_of(
                *(
                    better_than(f"head_white_r{b}.kl_nats.smollm2", f"head_white_r{a}.kl_nats.smollm2")
                    for a, b in ((50, 60), (60, 70), (70, 80), (80, 90))
                )
            ),
            scale="reduced",
            why_scale=REAL,
        ),
        Claim(
            "better_than_joint",
            "At equal parameters, and at an equal cache, WSVD without quantisation diverges less from the dense model than QSVD.",
            paper_says="LLaVA-v1.5-7B, mean accuracy over five ratios: QSVD 62.64, WSVD 64.10",
            check=all_of(
                better_than("wsvd_r50.kl_nats.smollm2", "qsvd_global_r50.kl_nats.smollm2"),
                better_than("wsvd_r50.kl_nats.smollm2", "qsvd_same_cache.kl_nats.smollm2"),
            ),
            scale="toy",
            why_scale="heads of a small model with three key-value heads share little that a per-head latent could drop; only a report",
        ),
    ],
    deviations=[
        Deviation(
            "SmolLM2-135M-Instruct on documentation text, judged by divergence from the dense model, in the cpu profile.",
            because="a vision-language model of the paper's size needs a GPU; divergence shows a gain of fine-tuning that "
            "the perplexity of a dozen short texts hides",
        ),
        Deviation(
            "The Fisher information is that of single samples; the published code squares the gradient of an accumulated batch.",
            because="the square of a mean is not the mean of squares; the paper's formula is the latter",
        ),
        Deviation(
            "In the cpu profile the network is calibrated and compared in bfloat16; sums, descents and rounded parts are float32.",
            because="it is quicker; for one draw of text the held-out divergence of tuned factors changed by less than one per cent",
        ),
        Deviation(
            "Adam runs at 1e-3 here, 1e-4 in the gpu profile.",
            because="in 100 steps the paper's rate moves the small model's factors too little",
        ),
        Deviation(
            "Among iterates that are kept on the way the one with the lowest divergence on held-out calibration text is taken.",
            because="the weighted objective falls on while the model gets worse again; the last iterates stand beside it",
        ),
        Deviation(
            "Claims on weightings use the same rank for every head; the comparison with QSVD allocates ranks globally for both.",
            because="equal ranks make one batch and isolate the weights; global allocation is the published setting",
        ),
        Deviation(
            "Rounding of the factorised projections, their input and their latents is simulated in floating point; the rest is not.",
            because="the claim is about what rounding loses there; integer kernels for the whole network are engineering of another kind",
        ),
        Deviation(
            "The input's rotation has Hadamard blocks, of 64 for a width of 576.",
            because="no Hadamard matrix of the doubling kind has that size",
        ),
        Deviation(
            "Accuracy on images is that of LLaVAs of a million parameters, trained from scratch to read one digit of a grid.",
            because="larger ones do not train in minutes; equal starts of queries and keys and an alignment loss let the look-up form",
        ),
        Deviation(
            "Speed on the CPU is that of attention without rotary positions.",
            because="with them keys must be rebuilt at every step, which is bound by arithmetic on a CPU; that path is tested, not claimed",
        ),
    ],
)


def __getattr__(name: str) -> Any:
    if name == "flow":
        return paper.flow()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
