"""Reinforcement learning of sets of trajectories, return times diversity: docs/papers/polychromic.md, https://arxiv.org/abs/2509.25424."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

from flows.engine.checks import Check, all_of, at_least, at_most, better_than, first_measured
from flows.engine.declare import Claim, Control, Deviation, Paper, Stage, braces

MAIN = ("ppo", "ppo_small", "reinforce", "poly")
SETS = ("set_mean", "vine_single")
ABLATIONS = ("poly_w20", "poly_ucb", "ppo_ucb", "ppo_entropy", "set_additive")
GOTO = ("ppo", "reinforce", "poly", "set_mean")
LARGE = ("ppo", "reinforce", "poly", "poly_ucb")
REFERENCES = ("pretrained", "ppo", "ppo_small", "reinforce", "set_mean", "vine_single")
KS = (1, 2, 5, 10, 20, 50, 100)
PAIRED = ("pass1", "pass10", "pass20", "diversity4", "entropy_nats")
CREATIVE = ("pretrained", "ppo", "poly", "set_mean", "set_additive", "poly_n8", "poly_n16", "poly_n32")
BABYAI = ("goto", "pickup", "bosslevel")
SIZES = ("poly", "poly_n8", "poly_n16")


def pairs(arms: tuple[str, ...], references: tuple[str, ...], quantities: tuple[str, ...], data: tuple[str, ...]) -> list[str]:
    """Names of the paired differences of arms to references."""
    return [f"{a}.{q}.{d}-{b}.{q}.{d}" for a, b, q, d in product(arms, references, quantities, data) if a != b]


def level_metrics(level: str, arms: tuple[str, ...], references: tuple[str, ...]) -> list[str]:
    """Everything that the comparison of a level's policies may report."""
    every = ("pretrained", *arms)
    single = (*(f"pass{k}" for k in KS), "coverage", "return", "diversity4", "entropy_nats", "greedy_success")
    starts = (level, f"{level}_moved", f"{level}_unseen")
    return [
        f"{braces(*every)}.{braces(*single)}.{braces(*starts)}",
        *pairs(every, references, PAIRED, starts),
        f"real.{{share,mismatches}}.{level}",
    ]


def trained_metrics(arms: tuple[str, ...], level: str) -> list[str]:
    """What training reports of every arm."""
    return [f"{braces(*arms)}.{{env_steps,updates,silent_share,skipped_states}}.{level}"]


def babyai_metrics(kind: str, data: str) -> list[str]:
    """What the stages of a level with a large network report."""
    if kind == "prepare":
        return [f"expert.steps.{data}"]
    if kind == "train":
        return [f"{braces(*LARGE)}.env_steps.{data}", f"pretrained.imitation.{data}"]
    every = ("pretrained", *LARGE)
    single = (*(f"pass{k}" for k in KS), "return", "diversity4")
    return [f"{braces(*every)}.{braces(*single)}.{data}", *pairs(every, ("pretrained", "ppo"), ("pass1", "pass10", "return"), (data,))]


def creative(policy: str, sizes: tuple[str, ...]) -> Check:
    """What the creativity claim says of a policy, and that larger sets, in this order, give more."""
    return all_of(
        at_least(f"poly.unique_valid.{policy}", f"ppo.unique_valid.{policy}", factor=3.0),
        better_than(f"poly.creativity.{policy}", f"ppo.creativity.{policy}", higher=True),
        at_least(f"ppo.validity.{policy}", f"poly.validity.{policy}", slack=0.1),
        at_most(f"set_mean.unique_valid.{policy}", f"poly.unique_valid.{policy}", factor=0.5),
        *(
            better_than(f"{larger}.unique_valid.{policy}", f"{smaller}.unique_valid.{policy}", higher=True)
            for smaller, larger in pairwise(sizes)
        ),
    )


paper = Paper(
    slug="polychromic",
    title="Polychromic Objectives for Reinforcement Learning",
    arxiv="2509.25424",
    openreview="zzTQISAGUp",
    summary=(
        "Fine-tuning a pretrained policy by reinforcement learning makes it repeat a few successful behaviours. The polychromic objective "
        "scores sets of rollouts from one state by mean return times diversity, and gives every member the advantage of its set, so "
        "that many strategies are kept and improved."
    ),
    figures=(
        "pass_at_k_fourrooms",
        "creativity",
        "bandit",
        "learning_fourrooms",
        "configurations_fourrooms",
        "ways_fourrooms",
        "pass_at_k_goto",
    ),
    apply="tasks.rl.judge_groups:judge_groups",
    stages=[
        *(
            Stage(
                f"prepare-{level}",
                "tasks.gridworld.prepared:prepare",
                budget_min=2,
                metrics=[f"twin.{{compared,mismatches}}.{level}", f"expert.{{steps,given_up,mean_steps}}.{level}"],
            )
            for level in ("fourrooms", "goto")
        ),
        Stage(
            "prepare-triangles",
            "tasks.creativity.prepared:prepare",
            budget_min=1,
            metrics=["{shown,held_out}.count.triangles"],
        ),
        *(
            Stage(
                f"warmstart-{level}",
                "tasks.gridworld.cloned:warmstart",
                needs=[f"prepare-{level}"],
                budget_min=2,
                metrics=[f"pretrained.{{imitation,start_success}}.{level}"],
            )
            for level in ("fourrooms", "goto")
        ),
        Stage(
            "warmstart-triangles",
            "tasks.creativity.prepared:warmstart",
            needs=["prepare-triangles"],
            budget_min=3,
            device="gpu",
            metrics=["pretrained.start_validity.{triangles,triangles_gpt}"],
        ),
        Stage(
            "train-fourrooms",
            "tasks.gridworld.tuned:train",
            needs=["prepare-fourrooms", "warmstart-fourrooms"],
            budget_min=12,
            metrics=trained_metrics(MAIN, "fourrooms"),
            curves=[f"{arm}.{name}" for arm in MAIN for name in ("success", "diversity4", "entropy_nats")],
        ),
        Stage(
            "train-sets",
            "tasks.gridworld.tuned:train",
            needs=["prepare-fourrooms", "warmstart-fourrooms"],
            budget_min=8,
            metrics=trained_metrics(SETS, "fourrooms"),
        ),
        Stage(
            "train-ablations",
            "tasks.gridworld.tuned:train",
            needs=["prepare-fourrooms", "warmstart-fourrooms"],
            budget_min=8,
            metrics=trained_metrics(ABLATIONS, "fourrooms"),
        ),
        Stage(
            "train-goto",
            "tasks.gridworld.tuned:train",
            needs=["prepare-goto", "warmstart-goto"],
            budget_min=8,
            metrics=trained_metrics(GOTO, "goto"),
        ),
        Stage(
            "train-triangles",
            "tasks.creativity.trained:train",
            needs=["prepare-triangles", "warmstart-triangles"],
            budget_min=6,
            device="gpu",
            metrics=[f"{braces(*CREATIVE)}.samples.{{triangles,triangles_gpt}}"],
        ),
        Stage(
            "evaluate-fourrooms",
            "tasks.gridworld.compared:evaluate",
            needs=["prepare-fourrooms", "warmstart-fourrooms", "train-fourrooms", "train-sets", "train-ablations"],
            budget_min=6,
            metrics=level_metrics("fourrooms", (*MAIN, *SETS, *ABLATIONS), REFERENCES),
        ),
        Stage(
            "evaluate-goto",
            "tasks.gridworld.compared:evaluate",
            needs=["prepare-goto", "warmstart-goto", "train-goto"],
            budget_min=4,
            metrics=level_metrics("goto", GOTO, ("pretrained", "ppo", "reinforce", "set_mean")),
        ),
        Stage(
            "evaluate-triangles",
            "tasks.creativity.judged:evaluate",
            needs=["prepare-triangles", "warmstart-triangles", "train-triangles"],
            budget_min=1,
            metrics=[
                f"{braces(*CREATIVE)}.{{validity,unique_valid,creativity,coverage}}.{{triangles,triangles_gpt}}",
                *pairs(
                    CREATIVE,
                    ("pretrained", "ppo", *SIZES),
                    ("validity", "unique_valid", "creativity", "coverage"),
                    ("triangles", "triangles_gpt"),
                ),
            ],
        ),
        Stage(
            "evaluate-bandit",
            "tasks.rl.bandit_report:evaluate",
            budget_min=1,
            metrics=["{poly,set_mean,plain}.{marginal_advantage,mass_rate,mass_gain,flow_gain}.bandit"],
        ),
        *(
            Stage(
                f"{kind}-babyai_{name}",
                f"tasks.gridworld.babyai_stages:{kind}",
                needs=needs,
                budget_min=12 * 60,
                device="cpu" if kind == "prepare" else "gpu",
                metrics=babyai_metrics(kind, f"babyai_{name}"),
                profiles=["gpu"],
            )
            for name in BABYAI
            for kind, needs in (("prepare", []), ("train", [f"prepare-babyai_{name}"]), ("evaluate", [f"train-babyai_{name}"]))
        ),
    ],
    claims=[
        Claim(
            "more_configurations_within_ten_and_twenty_tries",
            "FourRooms: polychromic PPO has a higher pass@10 and pass@20 than PPO with either batch size, at equal environment steps.",
            paper_says="pass@k lies above that of PPO for nearly all k and still rises at k of about 80, where baselines flatten at 20.",
            check=all_of(
                *(
                    better_than(f"poly.{q}.fourrooms", f"{other}.{q}.fourrooms", higher=True)
                    for q, other in product(("pass10", "pass20"), ("ppo", "ppo_small"))
                )
            ),
            scale="reduced",
            why_scale="The paper's environment, reward and 50 configurations, 40 tries of each; a small network and a million steps.",
            control=Control("the same sets without diversity", swap={"poly": "set_mean"}),
        ),
        Claim(
            "higher_success_than_pretrained",
            "FourRooms: polychromic PPO raises the success of a single attempt by at least 0.2.",
            paper_says="70.4 % pretrained, 92.4 % after polychromic PPO.",
            check=at_least("poly.pass1.fourrooms-pretrained.pass1.fourrooms", 0.2),
            scale="reduced",
            why_scale="The paper's environment and protocol; the pretrained policy is weaker than the paper's.",
        ),
        Claim(
            "higher_success_than_ppo",
            "FourRooms: a single attempt succeeds more often after polychromic PPO than after PPO.",
            paper_says="92.4 % against 89.2 % (return .666 against .618).",
            check=better_than("poly.pass1.fourrooms", "ppo.pass1.fourrooms", higher=True),
            scale="reduced",
            why_scale="The paper's environment and protocol, a small network; every arm has the same environment steps.",
        ),
        Claim(
            "coverage_is_kept",
            "FourRooms: pass@20 stays within 0.01 of the pretrained policy's under polychromic PPO, and falls by over 0.005 under PPO.",
            paper_says="pass@k is at least the pretrained policy's for nearly all k; PPO's falls below it for large k.",
            check=all_of(
                at_least("poly.pass20.fourrooms-pretrained.pass20.fourrooms", -0.01),
                at_most("ppo.pass20.fourrooms-pretrained.pass20.fourrooms", -0.005),
            ),
            scale="reduced",
            why_scale="The pretrained policy solves nearly every configuration within 20 tries, so that what is lost shows.",
            control=Control("the same sets without diversity", swap={"poly": "set_mean"}),
        ),
        Claim(
            "more_diverse_than_ppo",
            "FourRooms: four attempts of polychromic PPO visit more different sets of rooms than four of PPO.",
            paper_says="Diversity of the rollouts is kept where PPO's collapses (figures).",
            check=better_than("poly.diversity4.fourrooms", "ppo.diversity4.fourrooms", higher=True),
            scale="reduced",
            why_scale="Diversity is measured as the method defines it, on the paper's environment.",
            control=Control("the same sets without diversity", swap={"poly": "set_mean"}),
        ),
        Claim(
            "moved_starts_and_unseen_layouts",
            "From starts in another room and in unseen layouts polychromic PPO has at least PPO's pass@20, and a higher pass@1 than the "
            "pretrained policy.",
            paper_says="Start moved: pass@1 65.0 % pretrained, 15.3 % PPO, 88.7 % polychromic PPO.",
            check=all_of(
                *(at_least(f"poly.pass20.fourrooms_{d}-ppo.pass20.fourrooms_{d}", 0.0) for d in ("moved", "unseen")),
                *(better_than(f"poly.pass1.fourrooms_{d}", f"pretrained.pass1.fourrooms_{d}", higher=True) for d in ("moved", "unseen")),
            ),
            scale="reduced",
            why_scale="The paper's perturbation; unseen layouts are ours.",
            control=Control("the same sets without diversity", swap={"poly": "set_mean"}),
        ),
        Claim(
            "diversity_comes_from_the_objective",
            "FourRooms: the set objective without diversity (d = 1) ends with less diverse attempts than the polychromic one.",
            paper_says="The product of return and diversity is what keeps strategies apart.",
            check=better_than("poly.diversity4.fourrooms", "set_mean.diversity4.fourrooms", higher=True),
            scale="reduced",
            why_scale="Same vines, sets, steps and updates; only the factor d differs.",
        ),
        Claim(
            "creativity",
            "Triangle discovery: at least three times as many different triangles as PPO, more never-shown ones, validity at most 0.1 "
            "lower; without diversity at most half of them remain, and larger sets give more.",
            paper_says="Best diversity and creativity of all methods, validity slightly below PPO.",
            check=first_measured(
                creative("triangles", ("poly", "poly_n8", "poly_n16", "poly_n32")),
                creative("triangles_gpt", ("poly", "poly_n32")),
            ),
            scale="toy",
            gpu_scale="reduced",
            why_scale="The paper's task on a small graph with a tabular policy: the collapse is one of the objective, not of the network.",
            control=Control("the same sets without diversity", swap={"poly": "set_mean"}),
        ),
        Claim(
            "rare_rewarded_actions_gain_mass",
            "Bandit, pi = (.9, .05, .05), r = (1, 1, 0), n = 4: ascent on the polychromic objective raises the rare rewarded action at "
            "once and by sampled ascent; plain policy gradient lowers it.",
            paper_says="Polychromic ascent moves mass to rare rewarded actions where policy gradient concentrates (entropy analysis).",
            check=all_of(
                at_least("poly.marginal_advantage.bandit", 0.0),
                at_least("poly.mass_rate.bandit", 0.0),
                at_least("poly.mass_gain.bandit", 0.0),
                at_most("plain.mass_rate.bandit", 0.0),
                at_most("plain.mass_gain.bandit", 0.0),
            ),
            scale="paper",
            why_scale="The analysis is about a bandit; marginal advantages are enumerated exactly.",
            control=Control("the same sets without diversity", swap={"poly": "set_mean"}),
        ),
    ],
    deviations=[
        Deviation(
            "Small perceptrons over one-hot views and a million environment steps; learning rates 3e-4 and 1e-3 instead of 1e-5 and 1e-4.",
            because="two processor cores; the paper's rates would leave so small a network where it was",
        ),
        Deviation(
            "Training runs in a batched twin of minigrid of tables; at least a tenth of the evaluation runs in minigrid.",
            because="it is a thousand times as fast, and it is refused unless it agrees with minigrid in every state that is compared",
        ),
        Deviation(
            "Every arm has the same environment steps, vines included, and PPO is run with two batch sizes.",
            because="vines cost steps; comparing by updates would give the method several times the data",
        ),
        Deviation(
            "40 tries at each configuration instead of 100; 20 from moved starts and in unseen layouts.",
            because="a tenth of them runs in minigrid, which takes most of the evaluation's time; no claim reads more than pass@20",
        ),
        Deviation(
            "Set advantages are divided by their standard deviation, GAE is standardised apart; vines in several sets get the mean.",
            because="the sources leave the scales open; the gradient of the mean with the count as weight is that of one term per set",
        ),
        Deviation(
            "BabyAI's GoTo on cpu: doors open, and a view that marks which objects fit the instruction, instead of a text encoder.",
            because="the level then stays still, so that the batched twin holds; the large networks read the text in the gpu profile",
        ),
        Deviation(
            "PPO with an entropy bonus, sets without diversity, additive sets and vines without sets are baselines besides the paper's.",
            because="without them nothing shows what the product of return and diversity does",
        ),
        Deviation(
            "Triangle discovery: a small graph and a tabular policy decide; a small transformer stands beside it, GPT-2 on gpu.",
            because="a tabular policy shows the objective's own effect in seconds; sizes of the paper's task are not fully stated",
        ),
    ],
)


def __getattr__(name: str) -> Any:
    if name == "flow":
        return paper.flow()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
