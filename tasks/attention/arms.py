"""The arms of the comparison at one density: vAttention with its predictors, and the baselines at the density that it had.

`Tuned` is what calibration found and later stages read. Baselines without an adaptive budget take a density as a parameter, so that they
read as much as vAttention did on the same prompt; top-p and MagicPIG are set on the calibration prompts and reported at what they read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.attention.baselines import Collisions, HybridFixed, SinkWindow, TopK, TopP, UniformSample
from tasks.attention.predictors import MagicPIG
from tasks.attention.vattention import Vattention, VAttentionConfig
from tasks.common.formats import read_json, write_json

if TYPE_CHECKING:
    from tasks.attention.interface import Method, Predictor

MATCHED = ("sink_window", "oracle_topk", "random", "hybrid_fixed", "hybrid_tuned", "hashattention")
"""Arms that read the density that they are given."""


@dataclass(frozen=True)
class Arm:
    """A method and what ranks keys for it (`None`: the oracle)."""

    method: Method
    predictor: Predictor | None = None


@dataclass(frozen=True)
class Tuned:
    """What calibration chose, by target density (`"10"`).

    Attributes:
        ends: sink and window, keys each.
        oracle: vAttention's configuration with oracle top-k.
        hashattention: vAttention's configuration with HashAttention.
        topp: share of the softmax that oracle top-p reads.
        magicpig: number of tables.
        heavy_share: best split of a fixed budget between heavy and sampled keys.
        magicpig_bits: bits of a table's code.
    """

    ends: int
    oracle: Mapping[str, VAttentionConfig]
    hashattention: Mapping[str, VAttentionConfig]
    topp: Mapping[str, float]
    magicpig: Mapping[str, int]
    heavy_share: Mapping[str, float]
    magicpig_bits: int = 8

    def write(self, path: Path) -> None:
        """As JSON."""
        content: dict[str, Any] = {"ends": self.ends, "magicpig_bits": self.magicpig_bits}
        content |= {name: {t: c.model_dump() for t, c in getattr(self, name).items()} for name in ("oracle", "hashattention")}
        content |= {name: dict(getattr(self, name)) for name in ("topp", "magicpig", "heavy_share")}
        write_json(path, content)

    @classmethod
    def read(cls, path: Path) -> Tuned:
        """What `write` wrote."""
        content = read_json(path)
        for name in ("oracle", "hashattention"):
            content[name] = {target: VAttentionConfig(**config) for target, config in content[name].items()}
        return cls(**content)


def vattention_arms(tuned: Tuned, target: str, hashes: Predictor) -> dict[str, Arm]:
    """`vattention` with the oracle and `vattention_hash` with HashAttention, as calibrated for a target density."""
    return {
        "vattention": Arm(Vattention(tuned.oracle[target])),
        "vattention_hash": Arm(Vattention(tuned.hashattention[target]), hashes),
    }


def matched_arm(name: str, density: float, ends: int, hashes: Predictor, heavy_share: float = 0.5) -> Arm:
    """An arm of `MATCHED` at a density in (0, 1]."""
    methods: dict[str, Method] = {
        "sink_window": SinkWindow(density, ends),
        "oracle_topk": TopK(density, ends, ends),
        "random": UniformSample(density, ends, ends),
        "hybrid_fixed": HybridFixed(density, ends, ends),
        "hybrid_tuned": HybridFixed(density, ends, ends, heavy_share),
        "hashattention": TopK(density, ends, ends),
    }
    if name not in methods:
        raise ValueError(f"unknown arm {name!r}; known: {', '.join(methods)}")
    return Arm(methods[name], hashes if name == "hashattention" else None)


def calibrated_arms(tuned: Tuned, target: str, seed: int) -> dict[str, Arm]:
    """`oracle_topp` and `magicpig`, whose density follows from what calibration set."""
    tables = MagicPIG(tuned.magicpig_bits, tuned.magicpig[target], seed=seed)
    return {
        "oracle_topp": Arm(TopP(tuned.topp[target], tuned.ends, tuned.ends)),
        "magicpig": Arm(Collisions(tuned.ends, tuned.ends), tables),
    }
