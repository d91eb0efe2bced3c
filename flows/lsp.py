"""Longest stable prefix: docs/papers/lsp.md, https://arxiv.org/abs/2603.05454.

Masked-diffusion decoding that commits one contiguous, stable block at the left end of what is unknown, with one boundary in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flows.engine.checks import Check, all_of, at_least, at_most, better_than, between, first_measured
from flows.engine.declare import Claim, Control, Deviation, Paper, Profile, Stage, braces

LSP = ("lsp", "lsp_wide", "lsp_tau3", "lsp_calibrated")
ABLATIONS = (
    "fixed_tau",
    "no_snap",
    "no_cache",
    "no_stability",
    "no_stability_wide",
    "scattered",
    "literal",
    "literal_nostab",
    "keep_draft",
)
QUOTAS = ("quota", "quota_half", "quota_quarter", "quota_random", "quota_entropy", "quota_margin", "quota_block")
THRESHOLDS = (
    *("threshold", "threshold_07", "threshold_block", "threshold_prefix", "threshold_prefix_whole", "threshold_dual"),
    "threshold_calibrated",
)
ARMS = (*LSP, *ABLATIONS, *QUOTAS, *THRESHOLDS, "prophet", "prophet_min", "ar")
SCORED = ("em", "tok_acc", "nfe", "token_forwards", "attn_pairs", "cache_writes", "runs", "flip_rate", "commit_mean")
COMPARED = ("em", "nfe", "token_forwards", "attn_pairs", "flip_rate")

OPPONENTS = (
    *("quota", "quota_half", "quota_block", "threshold", "threshold_block", "threshold_prefix", "threshold_prefix_whole"),
    *("threshold_dual", "threshold_calibrated", "prophet", "prophet_min", "ar"),
)
PAIRS = (
    *((ours, other) for ours in ("lsp", "lsp_wide", "lsp_calibrated") for other in OPPONENTS),
    *((other, "lsp") for other in ("lsp_wide", "lsp_tau3", "ar", *(a for a in ABLATIONS if a != "no_stability_wide"))),
    *((other, "quota") for other in ("literal", "scattered", "ar", "threshold", "threshold_prefix_whole")),
    *(("scattered", "threshold"), ("lsp", "scattered"), ("literal", "threshold"), ("literal", "quota_half")),
)
REAL_PAIRS = (
    *(("lsp", other) for other in ("quota", "quota_half", "threshold", "threshold_block", "threshold_prefix", "threshold_dual")),
    *((other, "lsp") for other in ("literal", "no_snap", "no_cache", "scattered", "fixed_tau", "no_stability", "lsp_wide")),
    *((other, "quota") for other in ("literal", "scattered", "quota_half")),
    *(("lsp_calibrated", "threshold_calibrated"), ("lsp_calibrated", "quota"), ("scattered", "threshold"), ("literal", "quota_half")),
)
TIMED = (
    *("quota", "quota_half", "threshold", "threshold_block", "threshold_prefix", "threshold_prefix_whole", "threshold_dual"),
    *("threshold_calibrated", "prophet", "ar", "lsp", "lsp_wide", "lsp_calibrated", "no_stability", "fixed_tau", "no_cache", "literal"),
)
REAL = ("llada", "dream")
BENCHMARKS = ("gsm8k", "humaneval", "mbpp")
LENGTHS: dict[Profile, tuple[int, ...]] = {"cpu": (64, 128, 256, 512), "smoke": (16, 32), "gpu": (64, 128, 256, 512, 1024)}


def differences(pairs: Sequence[tuple[str, str]], quantities: Sequence[str], data: str) -> list[str]:
    """Names of paired differences."""
    return [f"{a}.{q}.{data}-{b}.{q}.{data}" for a, b in pairs for q in quantities]


def speeds(lengths: Sequence[int]) -> list[str]:
    """What `evaluate-speed` reports by answer length."""
    of = braces(*(f"n{n}" for n in lengths))
    return [
        f"{{cached,uncached,quota}}.latency_ms.{of}",
        f"{{cached,uncached_again}}.latency_ratio.{of}",
        f"cached.latency_ratio_to_quota.{of}",
    ]


def real(name: str) -> list[Stage]:
    """Tuning and comparison of schedulers on a published model."""
    sets = [f"{name}_{benchmark}" for benchmark in BENCHMARKS]
    return [
        Stage(
            f"train-{name}",
            "tasks.masked_diffusion.real_models:calibrate",
            needs=["prepare-benchmarks"],
            budget_min=24 * 60,
            device="gpu",
            profiles=["gpu"],
            metrics=[
                f"calibration.em_reference.{name}",
                f"{{lsp_calibrated,threshold_calibrated}}.{{calibration_em,calibration_nfe}}.{name}",
            ],
        ),
        Stage(
            f"evaluate-{name}",
            "tasks.masked_diffusion.real_models:evaluate",
            needs=["prepare-benchmarks", f"train-{name}"],
            budget_min=5 * 24 * 60,
            device="gpu",
            profiles=["gpu"],
            metrics=[
                f"{braces(*ARMS)}.{braces(*(s for s in SCORED if s != 'tok_acc'))}.{braces(*sets)}",
                *(name for data in sets for name in differences(REAL_PAIRS, ("em", "nfe", "token_forwards", "flip_rate"), data)),
            ],
        ),
    ]


def on_llada_else_toy(check: Callable[[str], Check]) -> Check:
    """The check on GSM8K with LLaDA where that was run, else on register traces."""
    return first_measured(check("llada_gsm8k"), check("trace"))


TOY = (
    "a model of two layers and 0.3 million parameters, trained here on a generated task whose answers have both independent and chained "
    "parts, stands in for LLaDA-8B and Dream-7B; calls, work and runs are counted exactly"
)

paper = Paper(
    slug="lsp",
    title="Beyond Scattered Acceptance: Fast and Coherent Inference for DLMs via Longest Stable Prefixes",
    arxiv="2603.05454",
    summary=(
        "Schedulers of diffusion language models accept sure tokens wherever they stand, which leaves holes, makes neighbours change "
        "their minds and breaks up the cache. The longest-stable-prefix scheduler commits one block per call at the left end: as far as "
        "predictions are sure and have not changed, cut back to a delimiter. The cache then grows by contiguous appends."
    ),
    apply="tasks.masked_diffusion.application:decode_prompts",
    figures=("commit_map", "frontier", "ablations", "active_length", "flips", "margins", "appends", "growth", "latency"),
    stages=[
        Stage(
            "prepare",
            "tasks.masked_diffusion.register_trace:prepare",
            budget_min=1,
            metrics=["programs.{test,calibration,reset_share}.trace"],
        ),
        Stage(
            "prepare-benchmarks",
            "tasks.masked_diffusion.benchmarks:prepare",
            budget_min=60,
            profiles=["gpu"],
            metrics=[f"problems.{{test,calibration}}.{braces(*BENCHMARKS)}"],
        ),
        Stage(
            "warmstart",
            "tasks.masked_diffusion.training:pretrain",
            needs=["prepare"],
            budget_min=10,
            device="gpu",
            metrics=["model.{loss,masked_accuracy}.trace"],
        ),
        Stage(
            "train",
            "tasks.masked_diffusion.scheduler_calibration:calibrate",
            needs=["prepare", "warmstart"],
            budget_min=5,
            device="gpu",
            metrics=["calibration.{em_reference,alpha,beta,tau_min,window,threshold}.trace"],
        ),
        Stage(
            "evaluate",
            "tasks.masked_diffusion.scheduler_evaluation:evaluate",
            needs=["prepare", "warmstart", "train"],
            budget_min=10,
            device="gpu",
            metrics=[
                f"{braces(*ARMS)}.{braces(*SCORED)}.trace",
                "{literal_nostab,literal,lsp,ar}.decay_excess.trace",
                "{quota,literal,literal_uncached}.{token_forwards_slope,attn_pairs_slope}.length",
                *differences(PAIRS, COMPARED, "trace"),
            ],
        ),
        Stage(
            "evaluate-speed",
            "tasks.masked_diffusion.decoding_speed:evaluate",
            needs=["prepare", "warmstart", "train"],
            budget_min=5,
            device="gpu",
            metrics=[
                f"{braces(*TIMED)}.{{latency_ms,latency_ratio}}.trace",
                "lsp.latency_against_{threshold_prefix,threshold_prefix_whole,threshold_dual}.trace",
                "lsp_calibrated.latency_against_threshold_calibrated.trace",
            ],
            metrics_in={profile: speeds(lengths) for profile, lengths in LENGTHS.items()},
        ),
        *real("llada"),
        *real("dream"),
    ],
    claims=[
        Claim(
            "half_the_calls",
            "At most half the denoiser calls of one token per call, at an exact match within 2 points of it; quota decoding with two "
            "tokens per call, which needs as many calls, loses at least 10 points to it.",
            paper_says="up to 3.4 times faster on maths, 2.5 on code, 2.0 on CJK and creative writing, quality equal or slightly better",
            check=on_llada_else_toy(
                lambda data: all_of(
                    at_most(f"lsp.nfe.{data}", f"quota.nfe.{data}", factor=0.5),
                    at_least(f"lsp.em.{data}-quota.em.{data}", -0.02),
                    at_least(f"lsp.em.{data}-quota_half.em.{data}", 0.1),
                )
            ),
            scale="toy",
            why_scale=TOY,
            control=Control("no floor: a quarter of the rest is committed whatever the margins are", swap={"lsp": "literal"}),
        ),
        Claim(
            "less_work_than_scattered",
            "Fewer token forwards than threshold decoding at 0.9 without a cache, at an exact match within 2 points of it.",
            paper_says="fewer calls and less work than scattered acceptance (reading of the abstract; no number could be obtained)",
            check=on_llada_else_toy(
                lambda data: all_of(
                    better_than(f"lsp.token_forwards.{data}", f"threshold.token_forwards.{data}"),
                    at_least(f"lsp.em.{data}-threshold.em.{data}", -0.02),
                )
            ),
            scale="toy",
            why_scale=TOY,
            control=Control(
                "as many tokens per call, but the surest ones anywhere, so that no prefix can be cached", swap={"lsp": "scattered"}
            ),
        ),
        Claim(
            "one_boundary",
            "Committed tokens are always one run; threshold decoding leaves more than 1.5 runs, and flips at least twice as often.",
            paper_says="one boundary between frozen and active positions, contiguous appends, a lower token flip rate",
            check=on_llada_else_toy(
                lambda data: all_of(
                    between(f"lsp.runs.{data}", 1, 1),
                    at_least(f"threshold.runs.{data}", 1.5),
                    at_most(f"lsp.flip_rate.{data}", f"threshold.flip_rate.{data}", factor=0.5),
                )
            ),
            scale="toy",
            why_scale=TOY,
            control=Control("as many tokens per call, but the surest ones anywhere", swap={"lsp": "scattered"}),
        ),
        Claim(
            "geometric_decay",
            "In the literal rule without stability, every call leaves at most (1 - alpha) n + W of n masked tokens, as long as n >= 8.",
            paper_says="the active length decays geometrically",
            check=at_most("literal_nostab.decay_excess.trace", 0.0),
            scale="toy",
            gpu_scale="toy",
            why_scale="a property of the rule, checked at every call of every answer; which model predicts plays no part",
            control=Control("one token per call", swap={"literal_nostab": "ar"}),
        ),
        Claim(
            "quadratic_instead_of_cubic",
            "Attention pairs grow with an exponent of at most 2.2 in the answer's length under the literal rule, and of at least 2.8 with "
            "one token per call (forced predictions, random margins).",
            paper_says="total work goes from O(N^3) to O(N^2)",
            check=all_of(at_most("literal.attn_pairs_slope.length", 2.2), at_least("quota.attn_pairs_slope.length", 2.8)),
            scale="toy",
            gpu_scale="toy",
            why_scale="work is counted, not timed; what is predicted plays no part in the literal rule",
            control=Control("one token per call", swap={"literal": "quota"}),
        ),
        Claim(
            "floor_is_needed",
            "Committing a quarter of the rest per call whatever the margins are loses at least 10 points of exact match against a "
            "floor of 2.",
            paper_says="no floor is described in the summaries that could be read, and quality is equal or slightly better",
            check=on_llada_else_toy(lambda data: at_most(f"literal.em.{data}-lsp.em.{data}", -0.1)),
            scale="toy",
            why_scale="our finding; register traces are chains, through which the small models see in part: the more, the less is lost",
            control=Control("snapping is switched off instead of the floor", swap={"literal": "no_snap"}),
        ),
        Claim(
            "cache_is_harmless",
            "Without the cache, token forwards are at least 1.3 times as many, and the exact match stays within 2 points (of small models "
            "whose training shows them frozen prefixes).",
            paper_says="prefix states are treated as fixed; quality is equal or slightly better",
            check=on_llada_else_toy(
                lambda data: all_of(
                    at_least(f"no_cache.token_forwards.{data}", f"lsp.token_forwards.{data}", factor=1.3),
                    between(f"no_cache.em.{data}-lsp.em.{data}", -0.02, 0.02),
                )
            ),
            scale="toy",
            why_scale="Calls and work are exact; the small model's training prepares it for a frozen prefix, so that harm in spite of that "
            "is what could show.",
            control=Control("snapping is switched off instead of the cache", swap={"no_cache": "no_snap"}),
        ),
        Claim(
            "cache_saves_time",
            "From 64 answer tokens on, an answer takes less time with the cache than without, on the same commits.",
            paper_says="contiguous appends to the cache, attention on a shrinking suffix (that calls get cheaper is our reading)",
            check=first_measured(
                all_of(*(at_most(f"cached.latency_ratio.n{n}", 1.0) for n in LENGTHS["cpu"])),
                all_of(*(at_most(f"cached.latency_ratio.n{n}", 1.0) for n in LENGTHS["smoke"])),
            ),
            scale="toy",
            gpu_scale="toy",
            why_scale="the small network with random weights; predictions are forced, so that both runs commit the same blocks",
            control=Control("the cache is off in both runs", swap={"cached": "uncached_again"}),
        ),
    ],
    deviations=[
        Deviation(
            "The cpu profile trains a masked-diffusion model of its own on generated programmes.",
            because="LLaDA-8B and Dream-7B do not fit; the gpu profile runs them on GSM8K, HumanEval and MBPP",
        ),
        Deviation(
            "The small models have two layers.",
            because="some of three layers come to read whole chains in one call, for which neither the literal rule nor two tokens per "
            "call lose anything, while others that differ in the seed alone lose much; chosen on calibration programmes",
        ),
        Deviation(
            "The threshold has a floor tau_min = 2 (logits), below which a call commits L_min = 1 token; the literal rule is an arm.",
            because="the rule as summarised commits a quarter of the rest whatever the margins are, which writes chained tokens before "
            "they can be known",
        ),
        Deviation(
            "Stability means: the same token as in the call before; an unstable token ends the run.",
            because="the abstract names temporal stability without a rule; a window of 0 is an arm",
        ),
        Deviation(
            "Where no delimiter lies in the window, the whole run is committed, and snapping is left out when everything passes.",
            because="the formula as summarised leaves it open, and falling back to one token would stall",
        ),
        Deviation(
            "A committed block's keys and values are computed in the next call, with its tokens instead of masks as inputs.",
            because="states of the call that predicted it are those of masks; what could be read does not say when they are taken",
        ),
        Deviation(
            "Nothing is committed behind the first predicted end token, and margins there are not looked at.",
            because="instruction-tuned models predict the end with huge margins at the far positions",
        ),
        Deviation(
            "In half of the training samples the prompt and the known tokens before the first mask do not look ahead, as in a cache.",
            because="trained on full attention alone, a small model may write values at the prompt's positions, which a frozen prefix "
            "cannot follow; that this prepares for a cache is our choice, and no statement about LLaDA or Dream",
        ),
        Deviation(
            "Half of the training masks are suffixes of the answer, the others LLaDA's, and operands grow from 0..1 to 0..4 over "
            "a first part of the steps.",
            because="with uniform masks and full operands the small model stays for most of its budget where it can only read resets",
        ),
        Deviation(
            "alpha = 0.25, beta = 0.5, W = 4 in the cpu profile (W = 8 in the gpu profile), L_min = 1, window of stability 1.",
            because="summaries of the paper give alpha and beta, the rest is our choice; a register trace has one at every second place",
        ),
        Deviation(
            "Opponents beyond the paper's: threshold decoding with a prefix cache, in blocks and over the whole answer, with a dual cache, "
            "and tuned by the same rule as the scheduler.",
            because="a cached scheduler against uncached ones alone would show the cache, not the scheduler",
        ),
    ],
)


def __getattr__(name: str) -> Any:
    if name == "flow":
        return paper.flow()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
