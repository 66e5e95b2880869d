"""A compiled sub-topology: the steps of the records of one topic."""

from __future__ import annotations

from ottla.streams.language.aggregating import Windowing
from ottla.streams.language.calls import Waiting, in_turn
from ottla.streams.language.runs import Run
from ottla.streams.language.steps import Compiler, SourceStep
from ottla.streams.language.topology import SubTopology


class CompiledPart:
    """The steps for a record: all streams of its topic, and then windows of idle keys close."""

    def __init__(self, part: SubTopology) -> None:
        compiler = Compiler()
        self.part = part
        self._steps: list[SourceStep] = [compiler.source(source) for source in part.sources]
        steps = (compiler.step(node) for node in part.aggregates)
        self._sweeping = [step for step in steps if isinstance(step, Windowing)]
        self._only = self._steps[0] if len(self._steps) == 1 and not self._sweeping else None

    def process(self, run: Run, time_ms: int) -> Waiting:
        """Take a record all the way; `time_ms` is the time of its partition."""
        if self._only is not None:
            return self._only(run)
        waiting = in_turn(step(run) for step in self._steps)
        if waiting is not None:
            return self._sweep_after(waiting, run, time_ms)
        if any(step.is_due(run, time_ms) for step in self._sweeping):
            return self._sweep(run, time_ms)
        return None

    async def _sweep_after(self, waiting: Waiting, run: Run, time_ms: int) -> None:
        if waiting is not None:
            await waiting
        await self._sweep(run, time_ms)

    async def _sweep(self, run: Run, time_ms: int) -> None:
        for step in self._sweeping:
            if step.is_due(run, time_ms):
                await step.sweep(run, time_ms)
