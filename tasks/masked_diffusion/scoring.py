"""Decode many prompts with one scheduler: a row per answer with what it cost and whether it is right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from tasks.masked_diffusion.decoding import Decoded, Denoiser, Specials
from tasks.masked_diffusion.schedulers import Scheduler, cached, decode, decode_together

if TYPE_CHECKING:
    import pandas as pd

COUNTED = ("nfe", "token_forwards", "attn_pairs", "cache_writes", "runs", "flip_rate", "commit_mean")
SCORED = ("em", "tok_acc", *COUNTED)


def before_end(tokens: Sequence[int], eos_id: int | None) -> list[int]:
    """Tokens before the first end."""
    kept = list(tokens)
    return kept[: kept.index(eos_id)] if eos_id in kept else kept


def token_accuracy(tokens: Sequence[int], answer: Sequence[int]) -> float:
    """Share of the answer's tokens that stand where they should; tokens beyond it count as wrong."""
    longest = max(len(tokens), len(answer), 1)
    same = sum(a == b for a, b in zip(tokens, answer, strict=False))
    return same / longest if answer or tokens else 1.0


def row_of(found: Decoded, answer: Sequence[int], eos_id: int | None) -> dict[str, float]:
    """Scores and counters of one answer, by the names that metrics bear."""
    tokens, wanted = before_end(found.tokens, eos_id), before_end(answer, eos_id)
    counters = asdict(found.counters)
    counters["runs"] = counters.pop("contiguous_runs")
    return {"em": float(tokens == wanted), "tok_acc": token_accuracy(tokens, wanted), **{k: float(counters[k]) for k in COUNTED}}


def decode_all(
    denoiser: Denoiser,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    specials: Specials,
    scheduler: Scheduler,
    device: str = "cpu",
    together: bool = False,
) -> list[Decoded]:
    """Decode every prompt to the length of its answer.

    Args:
        denoiser: the model; with `together` it must take a batch.
        prompts: token ids of each.
        answers: only their lengths count.
        specials: mask, end and delimiter tokens.
        scheduler: which tokens to commit when.
        device: where the denoiser wants its tokens.
        together: a scheduler without a cache decodes all answers side by side; they and their prompts then have one length.

    Raises:
        ValueError: if answers that are decoded together differ in length, and as in `decode`.
    """
    pairs = zip(prompts, answers, strict=True)
    if together and not cached(scheduler):
        lengths = {len(answer) for answer in answers}
        if len(lengths) != 1:
            raise ValueError(f"answers decoded together have one length, got {sorted(lengths)}")
        return decode_together(denoiser, prompts, lengths.pop(), specials, scheduler, device=device)
    return [decode(denoiser, prompt, len(answer), specials, scheduler, device=device) for prompt, answer in pairs]


def table_of(found: Iterable[Decoded], answers: Iterable[Sequence[int]], eos_id: int | None) -> pd.DataFrame:
    """A row per answer."""
    import pandas as pd

    return pd.DataFrame([row_of(one, answer, eos_id) for one, answer in zip(found, answers, strict=True)])
