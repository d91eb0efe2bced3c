"""Over-estimates of the potential set: which unvisited customers may still have a feasible completion after them.

    S  <=  tsl  <=  local  <=  none,      ssl is either all unvisited customers or empty

By the triangle inequality a customer that cannot be reached directly in time can never be reached later, so the sets below never lose a
node of S. `tsl` is the test of the proactive mask of PIP (Bi et al., 2024); what is done when it is empty makes the methods differ.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from tasks.routing.instances import Instances

Lookahead = Literal["none", "local", "ssl", "tsl"]
MOST_ELEMENTS = 1 << 26
"""Of one (rows, N, N) buffer; more is done in chunks."""


class CandidateSets:
    """Look-ahead sets of a batch of instances.

    Args:
        instances: B instances.
        kind: `none` all unvisited customers; `local` those reached in time; `ssl` (single step) all unvisited customers if every one of
            them is reached in time, else none; `tsl` (two steps) those reached in time after which every other one is reached in time.

    Raises:
        ValueError: for an unknown kind.
    """

    def __init__(self, instances: Instances, kind: Lookahead) -> None:
        if kind not in get_args(Lookahead):
            raise ValueError(f"unknown look-ahead {kind!r}; known: {', '.join(get_args(Lookahead))}")
        self.kind = kind
        self._early, self._deadline, self._steps = instances.early, instances.deadline, instances.steps
        # Latest clock at j from which k is reached in time, never where k's window is void (a depot that closes early shortens windows).
        void = (self._early > self._deadline)[:, None, :]
        leave = (self._deadline[:, None, :] - self._steps).masked_fill(void, -torch.inf)
        # A customer does not wait for itself.
        self._leave = leave.masked_fill(torch.eye(instances.nodes, dtype=torch.bool, device=leave.device), torch.inf)

    def __call__(self, rows: Tensor, current: Tensor, clock: Tensor, unvisited: Tensor) -> Tensor:
        """Sets after partial tours.

        Args:
            rows: which instances, (b,).
            current: last nodes, (b, S).
            clock: at them, (b, S).
            unvisited: customers still to visit, (b, S, N), the depot excluded.

        Returns:
            allowed next nodes, bool (b, S, N).
        """
        if self.kind == "none":
            return unvisited.clone()
        arrival = self.arrival(rows, current, clock)
        in_time = arrival <= self._deadline[rows][:, None]
        if self.kind == "ssl":
            return unvisited & (in_time | ~unvisited).all(-1, keepdim=True)
        if self.kind == "local":
            return unvisited & in_time
        return unvisited & in_time & (arrival <= self._last_call(rows, unvisited))

    def arrival(self, rows: Tensor, current: Tensor, clock: Tensor) -> Tensor:
        """Clock at every node when it is visited next, (b, S, N)."""
        return torch.maximum(clock[..., None] + self._steps[rows[:, None], current], self._early[rows][:, None])

    def _last_call(self, rows: Tensor, unvisited: Tensor) -> Tensor:
        """Latest clock at each node from which all other unvisited ones are reached in time, (b, S, N)."""
        b, samples, nodes = unvisited.shape
        found = torch.empty((b, samples, nodes), dtype=self._leave.dtype, device=self._leave.device)
        for at in range(0, b, size := max(1, MOST_ELEMENTS // (samples * nodes * nodes))):
            part = slice(at, at + size)
            waits = self._leave[rows[part]][:, None].masked_fill(~unvisited[part][:, :, None, :], torch.inf)
            found[part] = waits.amin(-1)
        return found
