"""Which step may start next, when several run side by side; no clock, no process, no Prefect."""

from __future__ import annotations

from collections.abc import Mapping

from flows.engine.outcome import Ended
from flows.engine.plan import SHARED, SPEED_STAGE, Step


class Schedule:
    """Steps that wait, run or have ended.

    A step starts when all that it needs has ended well, so that no two processes ever race for a common upstream. Shared stages
    go first, then paper after paper. A stage that measures speed has the machine to itself, and one graphics card serves one
    stage at a time.

    Args:
        steps: what is to be run, in topological order; what else a step needs counts as done.
        workers: how many run side by side.
        profile: `gpu` makes stages with that device take turns.
    """

    def __init__(self, steps: Mapping[str, Step], workers: int, profile: str = "cpu") -> None:
        if workers < 1:
            raise ValueError(f"workers must be 1 or more, got {workers}")
        order = {name: place for place, name in enumerate(steps)}
        ranked = sorted(steps.values(), key=lambda step: (step.slug != SHARED, step.slug, order[step.name]))
        self._waiting = {step.name: step for step in ranked}
        self._running: dict[str, Step] = {}
        self._workers, self._profile = workers, profile
        self.ended: dict[str, Ended] = {}

    @property
    def unfinished(self) -> bool:
        """Whether anything runs or waits."""
        return bool(self._waiting or self._running)

    def start(self) -> list[Step]:
        """Steps to start now; they count as running from here on."""
        started = []
        for step in list(self._waiting.values()):
            if len(self._running) < self._workers and self._ready(step) and self._fits(step):
                del self._waiting[step.name]
                self._running[step.name] = step
                started.append(step)
        return started

    def alone(self, step: Step) -> bool:
        """Whether a step has the machine to itself."""
        return step.stage == SPEED_STAGE

    def end(self, ended: Ended) -> list[Ended]:
        """Note how a running step ended; returns the steps that can no longer run because of it."""
        del self._running[ended.name]
        self.ended[ended.name] = ended
        if ended.ok:
            return []
        blocked: list[Ended] = []
        lost = {ended.name: ended.name}
        found = True
        while found:
            found = False
            for step in list(self._waiting.values()):
                cause = next((u for u in step.upstream if u in lost), None)
                if cause:
                    del self._waiting[step.name]
                    lost[step.name] = lost[cause]
                    blocked.append(Ended(step.name, "not run", message=f"needs {cause}, and {ended.name} {ended.outcome}"))
                    found = True
        self.ended.update({step.name: step for step in blocked})
        return blocked

    def _ready(self, step: Step) -> bool:
        return not any(u in self._waiting or u in self._running for u in step.upstream)

    def _fits(self, step: Step) -> bool:
        running = self._running.values()
        if any(self.alone(other) for other in running) or (self.alone(step) and self._running):
            return False
        return not (self._on_gpu(step) and any(self._on_gpu(other) for other in running))

    def _on_gpu(self, step: Step) -> bool:
        return self._profile == "gpu" and step.declared is not None and step.declared.device == "gpu"
