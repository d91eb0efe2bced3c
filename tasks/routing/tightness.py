"""How tight the look-ahead sets are: their sizes beside that of the exact potential set, by depth, along random partial tours."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from pydantic import Field

from tasks.common.node import Metrics, Params
from tasks.common.statistics import summarise
from tasks.routing.exact import arrays_of, feasible_next, latest_departures
from tasks.routing.generators import Hardness, random_tsptw
from tasks.routing.lookahead import CandidateSets

KINDS = ("local", "ssl", "tsl")


class TightnessParams(Params):
    """Instances with time windows, small enough for exact sets; those without a tour are left out."""

    instances: int = Field(60, ge=1)
    nodes: int = Field(12, ge=3, le=14)
    hardness: Hardness = "medium"
    seed: int = 31


def measure_tightness(params: TightnessParams) -> pd.DataFrame:
    """Sizes of all sets after partial tours that take a random node of the two-step set, a row per instance and depth.

    Tours go on while that set is not empty, dead ends of the exact set included.

    Raises:
        ValueError: if no instance has a tour.

    >>> table = measure_tightness(TightnessParams(instances=2, nodes=6))
    >>> bool((table["exact"] <= table["tsl"]).all() and (table["tsl"] <= table["local"]).all())
    True
    """
    generator = torch.Generator().manual_seed(params.seed)
    instances = random_tsptw(params.instances, params.nodes, params.hardness, generator)
    sets = {kind: CandidateSets(instances, kind) for kind in KINDS}  # type: ignore[arg-type]
    records = []
    for i, arrays in enumerate(arrays_of(instances)):
        latest = latest_departures(arrays)
        prefix, clock = [0], float(arrays.early[0])
        if not feasible_next(arrays, prefix, clock, latest):
            continue
        while len(prefix) < params.nodes:
            unvisited = torch.ones((1, 1, params.nodes), dtype=torch.bool)
            unvisited[0, 0, prefix] = False
            state = (torch.tensor([i]), torch.tensor([[prefix[-1]]]), torch.tensor([[clock]], dtype=torch.float64), unvisited)
            found = {kind: make(*state)[0, 0] for kind, make in sets.items()}
            exact = len(feasible_next(arrays, prefix, clock, latest))
            records.append({"instance": i, "depth": len(prefix) - 1, "exact": exact, **{kind: int(f.sum()) for kind, f in found.items()}})
            options = found["tsl"].nonzero()[:, 0]
            if not len(options):
                break
            following = int(options[torch.randint(len(options), (1,), generator=generator)])
            clock = max(clock + arrays.steps[prefix[-1], following], float(arrays.early[following]))
            prefix.append(following)
    if not records:
        raise ValueError(f"none of {params.instances} instances of {params.nodes} nodes has a tour; take more of them")
    return pd.DataFrame(records)


def tightness_metrics(table: pd.DataFrame) -> Metrics:
    """Nodes that a set holds beyond the exact one, mean over depths, interval over instances; negative for `ssl` where it is empty."""
    metrics: Metrics = {}
    for kind in KINDS:
        surplus = (table[kind] - table["exact"]).groupby(table["instance"]).mean()
        metrics |= summarise(f"{kind}.surplus_nodes.tightness", np.asarray(surplus))
    return metrics
