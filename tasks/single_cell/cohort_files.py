"""Files of cohorts as the prepare stages write them, and which reference each target belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.common.formats import read_json
from tasks.common.node import Inputs

FACTOR_SETUPS = (1, 2, 3, 4)
COUNT_SETUP = 6
PBMC = "pbmc_p"


@dataclass(frozen=True)
class Cells:
    """Cells of one file with d genes.

    Attributes:
        values: expression (n, d), float32.
        genes: names (d,).
        labels: types (n,).
        counts: (n, d) whole numbers, or None.
        signal: expression without noise (n, d), or None.
        oracle: expression that the exact posterior mean of the latents gives (n, d), or None.
        kept: genes that pass the reference's presence filter (d,); all in a target.
    """

    values: NDArray[np.float32]
    genes: tuple[str, ...]
    labels: NDArray[np.str_]
    counts: NDArray[np.float32] | None
    signal: NDArray[np.float32] | None
    oracle: NDArray[np.float32] | None
    kept: NDArray[np.bool_]


def family_of(target: str, files: tuple[str, ...] = ()) -> str:
    """Name of the reference that a target is denoised with.

    Raises:
        ValueError: for an unknown target.

    >>> family_of("setup3"), family_of("pbmc_p30")
    ('factor', 'pbmc')
    """
    if target in files:
        return target
    if target.startswith(PBMC) and target[len(PBMC) :].isdigit() and 0 < int(target[len(PBMC) :]) <= 100:
        return "pbmc"
    known = {f"setup{s}": "factor" for s in FACTOR_SETUPS} | {"setup5": "genewise", f"setup{COUNT_SETUP}": "counts"}
    if target not in known:
        raise ValueError(f"unknown target {target!r}; known: {', '.join([*known, 'pbmc_p1 to pbmc_p100', *files])}")
    return known[target]


class Case(NamedTuple):
    """A target and its reference at one seed, as files of the two prepare stages.

    Attributes:
        target: name of the target.
        family: name of its reference.
        seed: of both.
        target_file: path of the target.
        reference_file: path of the reference; read only by stages that need it.
    """

    target: str
    family: str
    seed: int
    target_file: Path
    reference_file: Path


def cases(inputs: Inputs, targets: Sequence[str] | None = None) -> list[Case]:
    """Every target at every seed, targets outermost.

    Args:
        inputs: needs `prepare-reference` and `prepare-target`.
        targets: only these, in this order, those that were not prepared left out; by default all.

    Raises:
        ValueError: if the two stages were given different seeds, or a target's reference was not prepared.
    """
    references, prepared = (read_json(inputs.file(f"prepare-{side}", "manifest.json")) for side in ("reference", "target"))
    if references["seeds"] != prepared["seeds"]:
        raise ValueError(f"references have {references['seeds']} seeds, targets {prepared['seeds']}; give both prepare stages the same")
    known = tuple(references["names"])
    found = []
    for target in prepared["names"] if targets is None else [t for t in targets if t in prepared["names"]]:
        family = family_of(target, known)
        if family not in known:
            raise ValueError(f"target {target!r} needs the reference {family!r}, which was not prepared (there are: {', '.join(known)})")
        for seed in range(prepared["seeds"]):
            files = (inputs["prepare-target"] / f"{target}-{seed}.h5ad", inputs["prepare-reference"] / f"{family}-{seed}.h5ad")
            found.append(Case(target, family, seed, *files))
    return found


def read_cohort(path: Path) -> Cells:
    """A file of a prepare stage."""
    import anndata

    data = anndata.read_h5ad(path)
    layers = {name: _dense(data.layers[name]) for name in ("counts", "signal", "oracle") if name in data.layers}
    if "U" in data.obsm:
        layers["signal"] = (data.obsm["U"] @ data.varm["V"].T).astype(np.float32)
    if "U_oracle" in data.obsm:
        layers["oracle"] = (data.obsm["U_oracle"] @ data.varm["V"].T).astype(np.float32)
    kept = data.var["kept"].to_numpy(dtype=bool) if "kept" in data.var else np.ones(data.n_vars, dtype=bool)
    return Cells(
        _dense(data.X),
        tuple(map(str, data.var_names)),
        data.obs["label"].astype(str).to_numpy(),
        layers.get("counts"),
        layers.get("signal"),
        layers.get("oracle"),
        kept,
    )


def _dense(matrix: Any) -> NDArray[np.float32]:
    return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix, dtype=np.float32)
