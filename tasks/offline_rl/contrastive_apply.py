"""The tool: a contrastive policy from a person's own Minari data set, with the baselines beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from tasks.common.formats import write_json
from tasks.common.node import Log, Params
from tasks.offline_rl.cloning import CloningConfig
from tasks.offline_rl.contrastive import ContrastiveConfig
from tasks.offline_rl.d4rl import roll_out
from tasks.offline_rl.episodes import Episodes, NoNegativeTrajectories, split_by_return
from tasks.offline_rl.learning_data import hold_out, learning_data
from tasks.offline_rl.minari_episodes import open_minari, read_minari_episodes
from tasks.offline_rl.offline_arms import Config, held_out_scores, train_arm
from tasks.offline_rl.policies import Policies, write_policies
from tasks.training.devices import PresentDevice

Baseline = Literal["bc_plus", "bc", "cpl", "uniform", "iql", "td3bc", "rebrac", "cql", "awr"]


class ApplyParams(Params):
    """Options of the tool."""

    dataset: str = Field(description="Minari data set: an identifier in the local store (MINARI_DATASETS_PATH), or a folder in its format")
    success: Literal["auto", "reward", "info", "quantile"] = Field(
        "auto", description="which trajectories are successes: a sparse reward, infos['success'], or a return above --quantile"
    )
    quantile: float = Field(0.75, gt=0, lt=1, description="share of returns below a success, where successes are told by the return")
    baselines: tuple[Baseline, ...] = Field(("bc_plus", "bc", "cpl"), description="arms that are trained beside the method")
    bias: float = Field(0.5, gt=0, le=1, description="lambda, weight of the negatives' score; small is close to cloning the successes")
    sigma: float = Field(0.3, ge=0, description="noise of degraded actions, in units where the action box is [-1, 1]")
    alpha: float = Field(0.05, gt=0, description="temperature of the log-likelihood; lower it where segments are long")
    segments: int = Field(16, ge=1, description="segments per update")
    k: int = Field(16, ge=1, description="steps per segment")
    updates: int = Field(1500, ge=1, description="updates of the method and of cloning; value-based baselines get ten times as many")
    hidden: tuple[int, ...] = Field((64, 64), description="widths of the policy's layers")
    held_out: float = Field(0.1, ge=0, lt=1, description="share of trajectories of each sign that are kept for scoring")
    seeds: int = Field(1, ge=1, description="policies per arm; the first is written, scores are means")
    episodes: int = Field(20, ge=0, description="rollouts per policy, where the data set's environment can be made; 0 for none")
    limit: int | None = Field(None, ge=2, description="read so many trajectories only")
    seed: int = Field(0, ge=0, description="seed of the split, the weights and the noise")
    device: PresentDevice = Field("cpu", description="torch device")


def apply(params: ApplyParams, out: Path, log: Log) -> dict[str, float | int | str]:
    """A policy that contrasts a data set's successes with failures: no values, one command, baselines beside it."""
    dataset = open_minari(params.dataset)
    data = read_minari_episodes(dataset, params.success, params.quantile, params.limit)
    train, held = hold_out(data, params.held_out, np.random.default_rng([params.seed, 0]))
    ready = learning_data(data.take(train))
    positive, negative = split_by_return(data)
    log.message(f"{len(positive)} successes and {len(negative)} failures by rule {data.about['rule']!r}, {len(data)} steps")
    policies: dict[str, Policies] = {}
    notes: dict[str, str] = {}
    arms = configs(params)
    for number, (arm, config) in enumerate(log.progress(arms.items(), desc="train")):
        try:
            policies[arm] = train_arm(config, ready, [(params.seed, s, number) for s in range(params.seeds)], params.device)
        except (NoNegativeTrajectories, FloatingPointError) as error:
            if arm == "preforl":
                raise ValueError(f"training failed: {error}; lower alpha or sigma") from error
            notes[arm] = str(error)
    table = [_row(arm, policies, notes, _held(data, held), _Rollouts(dataset, data, params), log) for arm in arms]
    out.mkdir(parents=True)
    write_policies(out / "policy.safetensors", {"preforl": policies["preforl"].take([0])})
    if others := {arm: p.take([0]) for arm, p in policies.items() if arm != "preforl"}:
        write_policies(out / "baselines.safetensors", others)
    _write_table(out / "arms.csv", table)
    about = {**data.about, "successes": len(positive), "failures": len(negative), "sha256": data.digest()}
    write_json(out / "config.json", {"options": params.model_dump(), "data": about, "arms": {a: c.model_dump() for a, c in arms.items()}})
    summary: dict[str, float | int | str] = {"successes": len(positive), "failures": len(negative), "rule": str(data.about["rule"])}
    for row in table:
        told = "success" if row["success"] is not None else "log_prob_held_out"
        if row[told] is not None:
            summary[f"{row['arm']} {told}"] = float(row[told])
    return summary


def configs(params: ApplyParams) -> dict[str, Config]:
    """The method and the baselines that were asked for."""
    from tasks.offline_rl.awr import AwrConfig
    from tasks.offline_rl.cql import CqlConfig
    from tasks.offline_rl.iql import IqlConfig
    from tasks.offline_rl.rebrac import ReBracConfig
    from tasks.offline_rl.td3bc import Td3BcConfig

    method = ContrastiveConfig(
        **{name: getattr(params, name) for name in ("bias", "sigma", "alpha", "segments", "k", "updates", "hidden")}, checkpoints=1
    )
    cloning = {"updates": params.updates, "hidden": params.hidden, "checkpoints": 1}
    values = {"updates": 10 * params.updates, "hidden": params.hidden}
    known: dict[str, Config] = {
        "bc_plus": CloningConfig(rows="successes", **cloning),
        "bc": CloningConfig(**cloning),
        "cpl": method.model_copy(update={"negatives": "failures", "alpha": 1.0, "bias": 0.2}),  # as tuned on the mazes
        "uniform": method.model_copy(update={"negatives": "uniform"}),
        "iql": IqlConfig(**values),
        "td3bc": Td3BcConfig(**values),
        "rebrac": ReBracConfig(**values),
        "cql": CqlConfig(**values),
        "awr": AwrConfig(**values),
    }
    return {"preforl": method, **{name: known[name] for name in dict.fromkeys(params.baselines)}}


def _held(data: Episodes, held: np.ndarray) -> tuple[Episodes | None, Episodes | None]:
    won = held[data.returns[held] > 0]
    lost = held[data.returns[held] <= 0]
    return (data.take(won) if len(won) else None, data.take(lost) if len(lost) else None)


def _row(
    arm: str,
    policies: dict[str, Policies],
    notes: dict[str, str],
    held: tuple[Episodes | None, Episodes | None],
    rollouts: _Rollouts,
    log: Log,
) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(("log_prob_held_out", "accuracy_action", "accuracy_state", "success", "return"))
    row |= {"arm": arm, "note": notes.get(arm, "")}
    if arm not in policies:
        return row
    if held[0] is not None:
        scores = held_out_scores(policies[arm], held[0], held[1], rollouts.params.seed)
        row |= {name: float(np.mean([s[name] for s in scores])) for name in scores[0]}
    if rollouts.params.episodes:
        try:
            returns, success = rollouts(policies[arm])
            row |= {"success": float(success.mean()), "return": float(returns.mean())}
        except Exception as error:  # whatever making somebody's environment may raise; the policy is trained all the same
            row["note"] = f"no rollouts: {type(error).__name__}: {error}"
            log.message(f"{arm}: {row['note']}")
    return row


@dataclass(frozen=True)
class _Rollouts:
    """Returns and successes (S, E) of policies in the environment that the data set names, from the same starts for all of them."""

    dataset: Any
    data: Episodes
    params: ApplyParams

    def __call__(self, policies: Policies) -> tuple[np.ndarray, np.ndarray]:
        starts = np.random.default_rng([self.params.seed, 1]).integers(2**31, size=self.params.episodes)
        by_return = self.data.about["rule"] == "quantile"
        return roll_out(self.dataset, policies, [int(x) for x in starts], by_return, float(self.data.about["level"]))


def _write_table(path: Path, table: list[dict[str, Any]]) -> None:
    import pandas as pd

    columns = ["arm", "success", "return", "log_prob_held_out", "accuracy_action", "accuracy_state", "note"]
    pd.DataFrame(table, columns=columns).to_csv(path, index=False)
