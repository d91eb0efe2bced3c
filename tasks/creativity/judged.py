"""Stage that judges samples of fine-tuned policies over triples: valid, unique, never shown."""

from __future__ import annotations

from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from tasks.common.formats import read_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.plotting import COLOURS, figure
from tasks.common.statistics import paired, summarise
from tasks.creativity.prepared import load_task
from tasks.creativity.triangles import Creativity, judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUANTITIES = ("validity", "unique_valid", "creativity", "coverage")
LABELS = {
    "pretrained": "pretrained",
    "ppo": "PPO",
    "set_mean": "sets, d = 1",
    "set_additive": "sets, R + d/2",
    "poly": "polychromic, n = 4",
}


class JudgeParams(Params):
    """What is compared.

    Attributes:
        references: arms that every arm is compared with, graph by graph.
    """

    references: tuple[str, ...] = Field(("pretrained", "ppo", "poly", "poly_n8", "poly_n16"), min_length=1)


def evaluate(params: JudgeParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: figure `creativity`.

    Metrics: `<arm>.{validity,unique_valid,creativity,coverage}.{triangles,triangles_gpt}`, shares of the samples (`coverage`: of the
    held-out triangles); paired differences to the references.
    """
    import pandas as pd

    table = pd.concat([read_parquet(inputs.file(n, "samples.parquet")) for n in ("warmstart-triangles", "train-triangles")])
    judged: dict[tuple[str, str], list[Creativity]] = {}
    tasks = {s: load_task(inputs.file("prepare-triangles", f"{s}.npz")) for s in sorted(set(table["seed"]))}
    cells = table.groupby(["policy", "arm", "seed"], sort=False)
    for (policy, arm, s), samples in log.progress(cells, total=cells.ngroups, desc="judge"):
        judged.setdefault((str(policy), str(arm)), []).append(judge(tasks[s], samples[["v1", "v2", "v3"]].to_numpy()))
    metrics: Metrics = {}
    for (policy, arm), quantity in product(judged, QUANTITIES):
        own = _values(judged[policy, arm], quantity)
        metrics |= summarise(f"{arm}.{quantity}.{policy}", own)
        for other in params.references:
            if other != arm and (policy, other) in judged:
                name = f"{arm}.{quantity}.{policy}-{other}.{quantity}.{policy}"
                metrics |= paired(name, own, _values(judged[policy, other], quantity))
    log.figure("creativity", draw(judged))
    return metrics


def draw(judged: dict[tuple[str, str], list[Creativity]]) -> Figure:
    """Bars of validity, unique valid and new triangles by arm; whiskers: one standard deviation over graphs."""
    policies = list(dict.fromkeys(policy for policy, _ in judged))
    drawn, axes = figure(9.0, 3.2 * len(policies), len(policies), 3, squeeze=False)
    titles = {"validity": "valid", "unique_valid": "valid and unique", "creativity": "valid, unique and never shown"}
    for row, policy in zip(axes, policies, strict=True):
        arms = [arm for p, arm in judged if p == policy]
        for panel, (quantity, title) in zip(row, titles.items(), strict=True):
            values = np.array([_values(judged[policy, arm], quantity) for arm in arms])
            spread = values.std(1, ddof=1) if values.shape[1] > 1 else None
            panel.barh(np.arange(len(arms)), values.mean(1), xerr=spread, color=[COLOURS[i % len(COLOURS)] for i in range(len(arms))])
            panel.set_yticks(
                np.arange(len(arms)), [LABELS.get(a, a.replace("poly_n", "polychromic, n = ")) for a in arms] if panel is row[0] else []
            )
            panel.invert_yaxis()
            panel.set(title=title, xlabel=f"share of samples, {'tabular' if policy == 'triangles' else 'transformer'}", xlim=(0, None))
            panel.title.set_fontsize(9.5)
    return drawn


def _values(judged: list[Creativity], quantity: str) -> list[float]:
    return [asdict(one)[quantity] for one in judged]
