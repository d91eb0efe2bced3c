"""Every factorisation method on a whole model: from weights and statistics to factors for each layer and projection.

Spectra are made once per method and cut for as many ratios as wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, get_args

import torch

from tasks.low_rank.allocation import global_ranks
from tasks.low_rank.attention import PROJECTIONS, AttentionBlock, Projection
from tasks.low_rank.collector import LayerStatistics
from tasks.low_rank.factorisations import (
    Coordinates,
    HeadFactors,
    Plain,
    SharedFactors,
    Spectrum,
    Whitened,
    activation_scale,
    fisher_scale,
    spectrum,
    truncate_heads,
    truncate_matrix,
)
from tasks.low_rank.heads import bounded_rank, head_rank, matrix_rank
from tasks.low_rank.whitening import whitening

Method = Literal["svd", "asvd", "svdllm", "fwsvd", "qsvd", "head_svd", "head_white"]
PER_HEAD = ("head_svd", "head_white")
JOINT: Final = "qsvd"
RANKED = ("head_white", JOINT)
"""Methods whose triples `importance_bases` ranks."""
Allocation = Literal["uniform", "global"]

Spectra = dict[tuple[int, str], Spectrum]
Factors = HeadFactors | SharedFactors
ModelFactors = dict[tuple[int, Projection], Factors]
"""Factors by layer and projection; what is not in it stays as it was."""


def whole(weight: torch.Tensor) -> torch.Tensor:
    """All heads of a projection side by side: (h, E, H) -> (E, h * H), acting as x @ W."""
    return weight.permute(1, 0, 2).flatten(1)


def spectra_of(
    method: Method,
    blocks: Sequence[AttentionBlock],
    statistics: Sequence[LayerStatistics],
    projections: Sequence[Projection] = PROJECTIONS,
) -> Spectra:
    """Spectra of every projection in a method's coordinates; `qsvd` has one per layer, of all projections side by side.

    Raises:
        ValueError: for an unknown method.
    """
    if method not in get_args(Method):
        raise ValueError(f"unknown method {method!r}; known: {', '.join(get_args(Method))}")
    found: Spectra = {}
    for layer, (block, known) in enumerate(zip(blocks, statistics, strict=True)):
        weights = {p: block.weight(p) for p in projections}
        shared = _coordinates(method, known, None)
        if method == JOINT:
            found[layer, "".join(projections)] = spectrum(torch.cat([whole(w) for w in weights.values()], dim=1), shared)
            continue
        for p, weight in weights.items():
            own = _coordinates(method, known, p) if method == "fwsvd" else shared
            found[layer, p] = spectrum(weight if method in PER_HEAD else whole(weight), own)
    return found


def _coordinates(method: Method, known: LayerStatistics, projection: Projection | None) -> Coordinates:
    makers: Mapping[str, Callable[[], Coordinates]] = {
        "svd": Plain,
        "head_svd": Plain,
        "asvd": lambda: activation_scale(known.abs_mean),
        "fwsvd": lambda: fisher_scale(whole(known.fisher[projection])) if projection else Plain(),
    }
    return makers.get(method, lambda: Whitened(whitening(known.second_moment)))()


def truncated(
    method: Method,
    spectra: Spectra,
    blocks: Sequence[AttentionBlock],
    kept: float,
    statistics: Sequence[LayerStatistics] | None = None,
    projections: Sequence[Projection] = PROJECTIONS,
    rank: int | None = None,
) -> ModelFactors:
    """Factors that keep a share of the parameters.

    Args:
        method: whose spectra they are.
        spectra: what `spectra_of` returned for the same projections.
        blocks: of the model.
        kept: rho1, the share of parameters that is kept.
        statistics: with them ranks follow the global importance (of `qsvd` and `head_white`), without they are uniform.
        projections: which are factorised.
        rank: takes the place of the rank that `kept` would give; cut to the full one, with a warning.

    Raises:
        ValueError: for global ranks of a method or of projections whose triples have no importance.
    """
    if statistics is not None and method not in RANKED:
        raise ValueError(f"global ranks need the importance of a method's own triples, known for {', '.join(RANKED)}, got {method!r}")
    factors: ModelFactors = {}
    for group in ["".join(projections)] if method == JOINT else projections:
        mine = {key: value for key, value in spectra.items() if key[1] == group}
        members: Sequence[Projection] = projections if method == JOINT else (group,)  # type: ignore[assignment]
        columns = sum(blocks[0].heads(p) for p in members) * blocks[0].head_dim
        width = blocks[0].head_dim if method in PER_HEAD else columns
        size = _rank(method, blocks[0], kept, columns) if rank is None else bounded_rank(rank, blocks[0].hidden, width)
        masks = None if statistics is None else global_ranks(_importances(statistics, list(mine)), size)
        for key, value in mine.items():
            cut = size if masks is None else masks[key]
            layer = key[0]
            if method in PER_HEAD:
                factors[layer, group] = truncate_heads(value, cut)  # type: ignore[index]
            elif method != JOINT:
                factors[layer, group] = truncate_matrix(value, cut)  # type: ignore[index]
            else:
                start = 0
                for p in projections:
                    width = blocks[layer].heads(p) * blocks[layer].head_dim
                    factors[layer, p] = truncate_matrix(value, cut, slice(start, start + width), len(projections))
                    start += width
    return factors


def _importances(statistics: Sequence[LayerStatistics], keys: Sequence[tuple[int, str]]) -> dict[tuple[int, str], torch.Tensor]:
    for layer, group in keys:
        if group not in statistics[layer].importance:
            known = ", ".join(sorted(statistics[layer].importance)) or "nothing"
            raise ValueError(f"layer {layer} has no importance of {group!r}, only of {known}; calibrate with `importance_bases`")
    return {(layer, group): statistics[layer].importance[group] for layer, group in keys}


def _rank(method: Method, block: AttentionBlock, kept: float, columns: int) -> int:
    return head_rank(kept, block.hidden, block.head_dim) if method in PER_HEAD else matrix_rank(kept, block.hidden, columns)


def parameter_ratio(factors: ModelFactors, blocks: Sequence[AttentionBlock]) -> float:
    """Share rho1 of the factorised projections' parameters that is kept."""
    dense = sum(blocks[layer].hidden * blocks[layer].heads(p) * blocks[layer].head_dim for layer, p in factors)
    return float(sum(f.parameters() for f in factors.values()) / dense)


def cache_ratio(factors: ModelFactors, blocks: Sequence[AttentionBlock]) -> float:
    """Share rho2 of the key-value cache that is kept when latents are cached; what is not factorised is cached whole.

    A latent that keys and values share (`qsvd`) is cached once; without values among its owners it is one of keys alone.
    """
    taken = dense = 0
    for layer, block in enumerate(blocks):
        full = block.heads("k") * block.head_dim
        dense += 2 * full
        found = [factors.get((layer, p)) for p in ("k", "v")]
        if all(isinstance(f, SharedFactors) and f.owners > 1 for f in found):
            found.pop()
        for f in found:
            taken += full if f is None else sum(f.ranks) if isinstance(f, HeadFactors) else f.A.shape[1]
    return taken / dense


def importance_bases(blocks: Sequence[AttentionBlock], statistics: Sequence[LayerStatistics]) -> Spectra:
    """The triples whose importance global allocation needs: whitened per head, and of all projections jointly."""
    return {**spectra_of("head_white", blocks, statistics), **spectra_of("qsvd", blocks, statistics)}
