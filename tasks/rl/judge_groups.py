"""Tool: polychromic advantages of a person's own rollouts, from a table of groups, returns and signatures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from tasks.common.node import Log, Params
from tasks.rl.set_advantages import Diversity, Objective, distinct_share, set_advantages

if TYPE_CHECKING:
    import pandas as pd


class JudgeGroupsParams(Params):
    """Options of the tool."""

    rollouts: Path = Field(description="CSV or Parquet file, a row per rollout; every group must have equally many rows")
    group: str = Field("group", description="column that names the state or prompt that a rollout starts from")
    reward: str = Field("return", description="column with the return, in [0, 1]")
    signature: str = Field("signature", description="column that tells kinds of behaviour apart; equal values are one kind")
    set_size: int = Field(4, ge=1, description="rollouts in a set")
    sets: int = Field(4, ge=1, description="sets drawn in each group")
    objective: Objective = Field("polychromic", description="score of a set")
    diversity: Diversity = Field("share", description="share: U/n, 0 if all are the same; excess: (U-1)/(n-1)")
    seed: int = Field(0, ge=0, description="seed of the sets")
    device: str = Field("cpu", description="only cpu: there is nothing here for an accelerator")


def judge_groups(params: JudgeGroupsParams, out: Path, log: Log) -> dict[str, float | int | str]:
    """Advantages and weights of rollouts by sets of them, for a PPO or GRPO loop of one's own.

    Writes the table with the columns `advantage` (shared by the members of a set, averaged over a rollout's sets) and `weight` (how many
    sets it is in), as Parquet if `out` ends so, else as CSV. Multiply a rollout's policy loss by its weight.

    Raises:
        ValueError: for a column that is not there, groups of different sizes or no larger than a set, a missing signature,
            or returns that are no numbers in [0, 1].
    """
    if params.device != "cpu":
        raise ValueError(f"device must be 'cpu', got {params.device!r}")
    table = read_table(params.rollouts)
    wanted = (params.group, params.reward, params.signature)
    if missing := [name for name in wanted if name not in table.columns]:
        raise ValueError(f"{params.rollouts} has no column {', '.join(missing)}; it has {', '.join(map(str, table.columns))}")
    codes = table[params.group].astype("category").cat.codes.to_numpy()
    counts = np.bincount(codes)
    if len(table) == 0 or codes.min() < 0 or counts.min() != counts.max():
        raise ValueError(
            f"groups need equally many rollouts, got {counts.min(initial=0)} to {counts.max(initial=0)}, or rows without a group"
        )
    order = np.argsort(codes, kind="stable")
    size = int(counts[0])
    if params.objective != "single" and params.set_size >= size:
        raise ValueError(
            f"set_size must lie below the {size} rollouts of a group, got {params.set_size}: all sets of a group would be the same one "
            "and teach nothing"
        )
    if lacking := int(table[params.signature].isna().sum()):
        raise ValueError(f"column {params.signature!r} is empty in {lacking} rows; every rollout needs a signature")
    try:
        returns = table[params.reward].to_numpy(float)[order].reshape(-1, size)
    except (TypeError, ValueError):
        raise ValueError(f"column {params.reward!r} must hold numbers in [0, 1]") from None
    kinds = table[params.signature].astype("category").cat.codes.to_numpy(np.int64)[order].reshape(-1, size)
    found = set_advantages(
        returns,
        kinds,
        np.random.default_rng(params.seed),
        set_size=params.set_size,
        sets=params.sets,
        objective=params.objective,
        diversity=params.diversity,
    )
    advantage, weight = np.empty(len(table)), np.empty(len(table))
    advantage[order], weight[order] = found.advantage.ravel(), found.weight.ravel()
    judged = table.assign(advantage=advantage, weight=weight)
    if out.suffix == ".parquet":
        judged.to_parquet(out, index=False)
    else:
        judged.to_csv(out, index=False)
    return {
        "groups": len(returns),
        "rollouts_per_group": size,
        "mean_return": float(returns.mean()),
        "mean_diversity": float(distinct_share(kinds, params.diversity).mean()),
        "silent_share": found.silent_share,
    }


def read_table(path: Path) -> pd.DataFrame:
    """A CSV or Parquet table, by its name's ending."""
    import pandas as pd

    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
