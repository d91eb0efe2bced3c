"""Behaviour cloning, of everything (BC) or of the successful trajectories alone (BC+, the honest reference for preference methods)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from tasks.common.node import Params
from tasks.offline_rl.contrastive import Iterates
from tasks.offline_rl.learning_data import DataStack

if TYPE_CHECKING:
    import torch

CHUNK = 64
"""Updates whose rows are drawn at once."""


class CloningConfig(Params):
    """Least squares on recorded actions.

    Attributes:
        rows: which trajectories are cloned.
        batch: rows per update.
        rate: of Adam.
        updates: in all.
        hidden: layers of the policy.
        dropout: during training.
        checkpoints: how many evenly spaced iterates to return.
    """

    rows: Literal["all", "successes"] = "all"
    batch: int = Field(256, ge=1)
    rate: float = Field(1e-3, gt=0)
    updates: int = Field(3000, ge=1)
    hidden: tuple[int, ...] = (64, 64)
    dropout: float = Field(0.0, ge=0, lt=1)
    checkpoints: int = Field(5, ge=1)


def clone_behaviour(
    stack: DataStack,
    parts: Sequence[int],
    seeds: Sequence[tuple[int, ...]],
    config: CloningConfig,
    after: Callable[[int, float], None] | None = None,
) -> Iterates:
    """Train P policies to repeat recorded actions.

    Args:
        stack: the data sets.
        parts: data set of each policy, (P,).
        seeds: numbers that seed each policy's generator.
        config: sizes and rates.
        after: called with (step, summed loss).

    Example:
        >>> from tasks.offline_rl.learning_data import learning_data
        >>> from tasks.offline_rl.episodes import Episodes
        >>> end = np.array([True, False])
        >>> two = Episodes(np.array([[0.0], [2.0]]), np.array([[0.5], [-0.5]]), np.array([1.0, 0.0]), np.zeros((2, 1)), end, ~end, end,
        ...                np.arange(2), np.array([-1.0]), np.array([1.0]))
        >>> config = CloningConfig(updates=2, checkpoints=1, batch=4, hidden=(4,))
        >>> sorted(clone_behaviour(DataStack([learning_data(two)]), [0], [(0,)], config).weights)
        [2]
    """
    from tasks.offline_rl.stacked import StackedMlp, generators_of
    from tasks.training.loop import descend

    generators = generators_of(seeds)
    d, a = stack.obs.shape[1], stack.action.shape[1]
    policy = StackedMlp(generators, (d, *config.hidden, a), squash=True, dropout=config.dropout).to(stack.device)
    data = [stack.parts[p] for p in parts]
    tables = [part.positive_rows if config.rows == "successes" else np.arange(len(part)) for part in data]
    rows = RowSampler([t + stack.offset[p] for t, p in zip(tables, parts, strict=True)], config.batch, generators, stack.device)
    kept = set(np.linspace(0, config.updates, config.checkpoints + 1)[1:].round().astype(int).tolist())
    found = Iterates()

    def loss(step: int) -> torch.Tensor:
        picked = rows(step)
        values = (policy(stack.obs[picked], generators) - stack.action[picked]).square().sum(-1).mean(1)
        if step % max(config.updates // 20, 1) == 0:
            found.history.append((step, "loss", values.detach().cpu().double().numpy()))
        return values.sum()

    def stepped(step: int, value: float) -> None:
        if step + 1 in kept:
            found.weights[step + 1] = policy.weights()
        if after is not None:
            after(step, value)

    descend(loss, policy.parameters(), config.updates, rate=config.rate, after=stepped)
    return found


class RowSampler:
    """Rows (P, B) of an update, uniform with replacement from P tables, each by its own generator.

    Args:
        tables: rows to draw from, P arrays, none empty.
        batch: B.
        generators: P of them.
        device: where the rows go.

    Raises:
        ValueError: for an empty table.
    """

    def __init__(self, tables: Sequence[np.ndarray], batch: int, generators: Sequence[torch.Generator], device: str) -> None:
        import torch

        if not all(len(t) for t in tables):
            raise ValueError("a table of rows to sample from is empty; there is no such trajectory in the data")
        self.tables = [torch.as_tensor(t) for t in tables]
        self.batch, self.generators, self.device = batch, generators, device
        self.drawn: torch.Tensor | None = None

    def __call__(self, step: int) -> torch.Tensor:
        """Rows (P, B) of this update; call with 0, 1, 2, ... in order."""
        import torch

        if step % CHUNK == 0 or self.drawn is None:
            drawn = [t[torch.randint(len(t), (CHUNK, self.batch), generator=g)] for t, g in zip(self.tables, self.generators, strict=True)]
            self.drawn = torch.stack(drawn, 1).to(self.device)  # (CHUNK, P, B)
        return self.drawn[step % CHUNK]
