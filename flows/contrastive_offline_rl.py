"""Preference-based policies from sparse offline data (PREFORL): docs/papers/contrastive_offline_rl.md, OpenReview zyLI9LEmry."""

from __future__ import annotations

from typing import Any

from flows.engine.checks import Check, all_of, at_least, at_most, better_than, first_measured, k_of
from flows.engine.declare import Claim, Control, Deviation, Paper, Stage, braces

MAIN = "medium"
OTHERS = ("goals", "umaze", "reacher", "no_failures")
COVERAGE = tuple(f"medium_n{n}" for n in (5, 10, 20, 40))
DATA = (MAIN, *OTHERS, *COVERAGE)
VARIANTS = ("preforl", "preforl_a", "preforl_s", "preforl_clip", "preforl_warm")
CONTRASTIVE = (*VARIANTS, "uniform", "cpl", "cpl_warm", "shuffled")
CLONING = ("bc", "bc_plus")
VALUES = ("iql", "iql_mean", "td3bc", "rebrac", "cql", "awr")
JUDGED = ("iql", "td3bc", "cql")
SHORT = tuple(f"{arm}_short" for arm in VALUES)
ARMS = (*CONTRASTIVE, *CLONING, *VALUES, *SHORT)
COMPARED = (*VARIANTS, "uniform", "shuffled", "bc_plus")
KINDS = ("wanderer", "seeker", "expert", "wrong_goal", "drifter")
GRID = tuple(f"preforl_l{bias}_s{sigma}" for bias in (20, 30, 50, 80, 100) for sigma in (10, 30, 100))
TASKS = (
    *("pen_human", "door_cloned", "hammer_cloned", "relocate_expert"),
    *("walker2d_medium", "hopper_medium", "halfcheetah_medium", "hopper_expert", "pointmaze_umaze", "pointmaze_medium", "pointmaze_large"),
)
REWARDED = ("pen_human", "door_cloned", "hammer_cloned", "relocate_expert")
PAPER_TASKS = (*REWARDED, "walker2d_medium")
D4RL_ARMS = ("preforl", "preforl_a", "preforl_s", "cpl", "bc", "bc_plus", "iql", "td3bc", "rebrac", "cql", "awr")


def success(arm: str, data: str = MAIN) -> str:
    """Name of the success rate of an arm."""
    return f"{arm}.success.{data}"


def beats(*others: str, by: float = 0.0, ours: str = "preforl") -> Check:
    """Higher success than every other arm on the main data, by a margin, paired over seeds."""
    return all_of(*(at_least(f"{success(ours)}-{success(other)}", by) for other in others))


def on_d4rl(metric: str, other: str) -> Check:
    """Better than another arm on every task of the paper's table that is in Minari."""
    return all_of(*(better_than(f"preforl.{metric}.{task}", f"{other}.{metric}.{task}", higher=True) for task in PAPER_TASKS))


def not_worse(arm: str, other: str, data: str) -> Check:
    """Parity: the interval of the paired difference reaches zero, and stays above -0.1, so that noise alone cannot pass."""
    difference = f"{success(arm, data)}-{success(other, data)}"
    return at_least(f"{difference}.hi", 0.0) & at_least(difference, -0.1)


paper = Paper(
    slug="contrastive_offline_rl",
    title="Preference-based Policy Optimization from Sparse-reward Offline Dataset",
    arxiv="",
    openreview="zyLI9LEmry",
    summary=(
        "Learn a policy from few successful trajectories among many failures without estimating any value: segments of successes are "
        "preferred to degraded copies of themselves, made by noise on the actions and by actions borrowed from the nearest failures, "
        "under a Bradley-Terry loss on the policy's own log-likelihood."
    ),
    figures=("success", "maze", "success_by_time", "overestimation", "coverage", "grid", "other_data", "learning"),
    apply="tasks.offline_rl.contrastive_apply:apply",
    stages=[
        Stage(
            "prepare",
            "tasks.offline_rl.sparse_data:prepare",
            budget_min=2,
            metrics=[
                f"behaviour.success.{braces(*DATA)}",
                f"data.{{transitions,successes,saturated_share}}.{braces(*DATA)}",
                f"neighbours.{{action_distance,within_sigma}}.{braces(*DATA)}",
                f"{braces(*KINDS)}.success.{braces(*DATA)}",
            ],
        ),
        Stage(
            "warmstart",
            "tasks.offline_rl.preference_arms:warmstart",
            needs=["prepare"],
            budget_min=3,
            device="gpu",
            metrics=[f"{braces(*CLONING)}.loss.{braces(*DATA)}"],
        ),
        Stage(
            "train-preference",
            "tasks.offline_rl.preference_arms:train",
            needs=["prepare", "warmstart"],
            budget_min=5,
            device="gpu",
            metrics=[
                f"{braces(*CONTRASTIVE)}.{{logit,log_prob,loss}}.{braces(*DATA)}",
                f"{braces(*CONTRASTIVE)}.cannot_run.{braces(*DATA)}",
            ],
        ),
        Stage(
            "train-robustness",
            "tasks.offline_rl.preference_arms:train",
            needs=["prepare"],
            budget_min=4,
            device="gpu",
            metrics=[
                f"{braces(*GRID)}.{{logit,log_prob,loss,cannot_run}}.{MAIN}",
            ],
        ),
        Stage(
            "train-value",
            "tasks.offline_rl.value_arms:train",
            needs=["prepare"],
            budget_min=15,
            device="gpu",
            metrics=[f"{braces(*VALUES)}.expected.{MAIN}"],
        ),
        Stage(
            "evaluate-policies",
            "tasks.offline_rl.contrastive_report:evaluate",
            needs=["prepare", "warmstart", "train-preference", "train-value"],
            budget_min=5,
            metrics=[
                f"{braces(*ARMS)}.{{success,steps_to_goal}}.{braces(*DATA)}",
                *(f"{success(a, d)}-{success(b, d)}" for a in COMPARED for b in ARMS for d in DATA if a != b),
                f"{braces(*ARMS)}.success_count.{braces(*DATA)}",
                f"{braces(*VALUES, *SHORT)}.{{expected_at_starts,achieved,overestimation}}.{MAIN}",
                f"{braces(*ARMS)}.{{log_prob_held_out,accuracy_action,accuracy_state}}.{MAIN}",
            ],
        ),
        Stage(
            "evaluate-robustness",
            "tasks.offline_rl.contrastive_grid:evaluate",
            needs=["prepare", "train-robustness"],
            budget_min=3,
            metrics=[
                f"{braces(*GRID)}.success.{MAIN}",
                f"{{grid,grid_unbiased}}.success_range.{MAIN}",
            ],
        ),
        Stage(
            "evaluate-speed",
            "tasks.offline_rl.contrastive_speed:evaluate",
            needs=["prepare", "evaluate-policies"],
            budget_min=3,
            metrics=[f"{braces(*CONTRASTIVE, *CLONING, *VALUES, *SHORT)}.time_ratio.{MAIN}"],
        ),
        Stage(
            "prepare-d4rl",
            "tasks.offline_rl.d4rl:prepare",
            budget_min=60,
            device="gpu",
            metrics=[f"behaviour.success.{braces(*TASKS)}", f"data.transitions.{braces(*TASKS)}"],
            profiles=["gpu"],
        ),
        Stage(
            "train-d4rl",
            "tasks.offline_rl.d4rl:train",
            needs=["prepare-d4rl"],
            budget_min=1200,
            device="gpu",
            metrics=[f"{braces(*D4RL_ARMS)}.cannot_run.{braces(*TASKS)}"],
            profiles=["gpu"],
        ),
        Stage(
            "evaluate-d4rl",
            "tasks.offline_rl.d4rl:evaluate",
            needs=["train-d4rl"],
            budget_min=300,
            metrics=[
                f"{braces(*D4RL_ARMS)}.{{success,return}}.{braces(*TASKS)}",
                f"{braces(*D4RL_ARMS)}.normalised_score.{braces(*(t for t in TASKS if not t.startswith('pointmaze')))}",
                *(
                    f"preforl.{q}.{t}-{b}.{q}.{t}"
                    for q in ("success", "return", "normalised_score")
                    for t in TASKS
                    for b in D4RL_ARMS
                    if b != "preforl"
                ),
            ],
            profiles=["gpu"],
        ),
    ],
    claims=[
        Claim(
            "better_at_equal_training_time",
            "With no more CPU time for training than BC, IQL, TD3+BC and CQL get, the policy succeeds on the maze at least 0.2 more often.",
            paper_says="Far above value-based methods on sparse data: walker2d-medium 98 against 42 (ReBRAC), hammer-cloned 28 against 7.",
            check=all_of(
                beats("bc", *(f"{arm}_short" for arm in JUDGED), by=0.2),
                *(at_least(f"{arm}.time_ratio.{MAIN}", 1.0) for arm in ("bc", *(f"{arm}_short" for arm in JUDGED))),
            ),
            scale="reduced",
            gpu_scale="reduced",
            why_scale="A simulated MuJoCo maze with a sparse reward, one success in seven: few, badly covered successes, as in the paper.",
            control=Control("successes assigned to trajectories at random", swap={"preforl": "shuffled"}),
        ),
        Claim(
            "better_than_values_at_any_time",
            "The policy succeeds more often than BC, and than IQL, TD3+BC and CQL that were tuned and trained for much longer.",
            paper_says="Above BC, IQL, TD3+BC, CQL and ReBRAC on D4RL Adroit, sparse MuJoCo and Maze2D.",
            check=first_measured(
                all_of(*(on_d4rl("success", arm) for arm in ("bc", *JUDGED))),
                all_of(*(better_than(success("preforl"), success(arm), higher=True) for arm in ("bc", *JUDGED))),
            ),
            scale="reduced",
            why_scale="A simulated MuJoCo maze; arms were tuned on other data sets, value-based ones over two or three configurations.",
            control=Control(
                "successes assigned to trajectories at random",
                check=all_of(*(better_than(success("shuffled"), success(arm), higher=True) for arm in ("bc", *JUDGED))),
            ),
        ),
        Claim(
            "better_than_recorded_failures",
            "Degraded successes are better negatives than recorded failures at their own states (CPL).",
            paper_says="CPL: pen-human 100.1, door-cloned 3.6, walker2d-medium 85.3; PREFORL: 119.1, 16.3, 98.0.",
            check=first_measured(
                on_d4rl("success", "cpl"),
                better_than(success("preforl"), success("cpl"), higher=True),
            ),
            scale="reduced",
            why_scale="The same loss, network and number of configurations for both; only the negatives differ.",
            control=Control(
                "successes assigned to trajectories at random", check=better_than(success("shuffled"), success("cpl"), higher=True)
            ),
        ),
        Claim(
            "not_worse_than_cloning_successes",
            "The policy is not worse than behaviour cloning of the successes alone: the interval of the paired difference reaches zero and "
            "stays above -0.1.",
            paper_says="BC is a baseline of the paper, on all data as far as known; cloning the successes alone is the honest reference.",
            check=not_worse("preforl", "bc_plus", MAIN),
            scale="reduced",
            gpu_scale="reduced",
            why_scale="The same successes, network, and number of configurations for both.",
            control=Control("successes assigned to trajectories at random", check=not_worse("shuffled", "bc_plus", MAIN)),
        ),
        Claim(
            "values_are_overestimated",
            "After long training the chosen iterate of IQL or TD3+BC expects at least 0.1 more than its policy gets from the starts of "
            "recorded successes.",
            paper_says="Value functions learned from few, sparse, badly covered data are over-optimistic.",
            check=k_of(1, *(at_least(f"{arm}.overestimation.{MAIN}", 0.1) for arm in ("iql", "td3bc"))),
            scale="reduced",
            gpu_scale="reduced",
            why_scale="Expected and achieved discounted returns from the same states, same discount, in the simulator that made the data.",
            control=Control("IQL without its maximum (expectile 0.5)", check=at_least(f"iql_mean.overestimation.{MAIN}", 0.1)),
        ),
        Claim(
            "values_are_overestimated_early",
            "After training for about as long as the method, too, IQL or TD3+BC expects at least 0.1 more than its policy gets.",
            paper_says="Value functions learned from few, sparse, badly covered data are over-optimistic.",
            check=k_of(1, *(at_least(f"{arm}_short.overestimation.{MAIN}", 0.1) for arm in ("iql", "td3bc"))),
            scale="reduced",
            gpu_scale="reduced",
            why_scale="As for long training; the iterates are earlier ones of the same runs.",
            control=Control(
                "IQL without its maximum (expectile 0.5)",
                check=first_measured(*(at_least(f"{arm}.overestimation.{MAIN}", 0.1) for arm in ("iql_mean_short", "iql_mean"))),
            ),
        ),
        Claim(
            "works_without_failures",
            "With successes alone CPL is undefined, while the method runs on degraded actions and is not worse than cloning the successes.",
            paper_says="Maze2D has no failures: CPL not applicable, PREFORL 2.22 (umaze) and 0.63 (large), the best of all.",
            check=at_least("cpl.cannot_run.no_failures", 1.0)
            & at_most("preforl_a.cannot_run.no_failures", 0.0)
            & not_worse("preforl_a", "bc_plus", "no_failures"),
            scale="reduced",
            gpu_scale="reduced",
            why_scale="A maze with random goals, as Maze2D has them; whether an arm can run does not depend on the scale.",
            control=Control("recorded failures as negatives", check=at_most("cpl.cannot_run.no_failures", 0.0)),
        ),
        Claim(
            "insensitive_to_its_parameters",
            "Over lambda in {0.3, 0.5, 0.8} and sigma in {0.1, 0.3} success varies by no more than 0.25.",
            paper_says="Insensitive to sigma, lambda, k and the degradation ratio.",
            check=at_most(f"grid.success_range.{MAIN}", 0.25),
            scale="reduced",
            gpu_scale="reduced",
            why_scale="A grid around the setting of all other claims, same data and training; its interval leans to large ranges.",
            control=Control("lambda of 1 in place of 0.8: no asymmetric weight", swap={"grid": "grid_unbiased"}),
        ),
        Claim(
            "every_operator_works",
            "Noisy actions alone and borrowed actions alone both succeed more often than behaviour cloning of everything; both together "
            "and uniformly random negatives are measured beside them, no order asserted.",
            paper_says="Both degradation operators contribute (ablation table).",
            check=all_of(
                *(better_than(success(arm), success("bc"), higher=True) for arm in ("preforl_a", "preforl_s")),
                *(at_least(success(arm), 0.0) for arm in ("preforl", "uniform")),
            ),
            scale="reduced",
            gpu_scale="reduced",
            why_scale="The same data and training for all four; only the negatives differ.",
            control=Control(
                "successes assigned to trajectories at random", check=better_than(success("shuffled"), success("bc"), higher=True)
            ),
        ),
    ],
    deviations=[
        Deviation(
            "PointMaze and Reacher data from scripted controllers in MuJoCo instead of D4RL Adroit, MuJoCo and Maze2D (gpu profile).",
            because="the data sets need a network; these are made in seconds with the same physics engine",
        ),
        Deviation(
            "Reacher is the second robot, not FetchReach.",
            because="gymnasium-robotics 1.4.2 cannot make FetchReach with mujoco 4",
        ),
        Deviation(
            "Method details that the sources leave open are ours: uniform k-subsets, noise without clipping, Euclidean neighbours on "
            "standardised states, a Gaussian policy of fixed variance, the index within the segment as time.",
            because="no code of the paper was found; the loss and its asymmetric weight are CPL's",
        ),
        Deviation(
            "Networks of two layers of 64, 16 segments of 16 steps, 1,800 updates in the cpu profile; 512, 96 x 64 and 500,000 in the gpu "
            "profile.",
            because="the mazes need no more, and more overfits twenty recorded successes",
        ),
        Deviation(
            "For every arm the best of its spaced iterates is chosen by rollouts from validation starts, then judged on test starts.",
            because="value-based learners are not monotone in training; the paper does not say how it chooses",
        ),
        Deviation(
            "Tuning budgets are unequal: twelve configurations or more for the method, BC+ and CPL, two or three for IQL, TD3+BC, CQL and "
            "AWR, one for ReBRAC.",
            because="one of a value-based arm costs about ten times the training time",
        ),
        Deviation(
            "Baselines are compact implementations of our own; no CDE, no Decision Transformer, no images.",
            because="libraries of offline RL pin an older gymnasium, and the rest needs weights or data that are not at hand",
        ),
        Deviation(
            "Lemma 3.1 (total variation goes to zero) is not tested.",
            because="its premise, degradations that cover the action space everywhere, cannot be checked from data",
        ),
    ],
)


def __getattr__(name: str) -> Any:
    if name == "flow":
        return paper.flow()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
