"""Aggregates: how a record changes the value of its key, or of its key and window, and when windows close."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ottla.streams.language.calls import Step, Waiting, in_turn, then
from ottla.streams.language.nodes import Aggregate
from ottla.streams.language.runs import Cell, Run
from ottla.streams.language.windows import (
    KeyWindows,
    WindowRules,
    WindowValue,
    decode,
    encode,
    with_window,
    without_window,
)
from ottla.streams.state.entry import NEVER, Entry

KEYS_PER_SWEEP: Final = 100
"""The most idle keys whose windows one record closes: it must not take long for their sake."""


class _Change(NamedTuple):
    """The window of a record, in the cell of its key."""

    cell: Cell
    windows: KeyWindows
    start_ms: int


def aggregate_step(node: Aggregate, following: Step) -> Step:
    """Return the step of an aggregate, with windows or without."""
    return Aggregating(node, following) if node.windows is None else Windowing(node, node.windows, following)


class _OfKeys:
    """A step that changes the cell of a record's key."""

    def __init__(self, node: Aggregate, following: Step) -> None:
        self._node = node
        self._spec = node.store
        self._state = node.store.state
        self._following = following

    def __call__(self, run: Run, key: Any, value: Any) -> Waiting:
        """Find the cell of the key, and apply the record to it; records without a key are counted."""
        if key is None:
            run.counters.without_key += 1
            return None
        cell = run.cell(self._spec.name, self._spec.key.serialize(key))
        if isinstance(cell, Cell):
            return self.in_cell(run, key, value, cell)
        return then(cell, self.in_cell, run, key, value)

    def in_cell(self, run: Run, key: Any, value: Any, cell: Cell) -> Waiting:
        """Apply a record to the cell of its key."""
        raise NotImplementedError


class Aggregating(_OfKeys):
    """Keeps one value per key, and passes each new one on."""

    def in_cell(self, run: Run, key: Any, value: Any, cell: Cell) -> Waiting:
        """Apply a record; one that was applied before passes the value on as it is now."""
        now = None if cell.value is None else self._state.deserialize(cell.value)
        if cell.is_known:
            return self._following(run, key, now)
        made = self._node.update(now, value)
        if hasattr(made, "__await__"):
            return then(made, self._updated, run, key, cell)
        return self._updated(run, key, cell, made)

    def _updated(self, run: Run, key: Any, cell: Cell, now: Any) -> Waiting:
        data = None if now is None else self._state.serialize(now)
        cell.after = Entry(data, run.record.offset)
        return self._following(run, key, now)


class Windowing(_OfKeys):
    """Keeps a value per key and window. Passes each new one on, or each window once when it closes."""

    def __init__(self, node: Aggregate, rules: WindowRules, following: Step) -> None:
        super().__init__(node, following)
        self._rules = rules

    def is_due(self, run: Run, until_ms: int) -> bool:
        """Return whether windows of idle keys may close at a time."""
        next_due_ms = run.stores[self._spec.name].store.next_due_ms
        return next_due_ms is not None and next_due_ms <= until_ms

    async def sweep(self, run: Run, until_ms: int) -> None:
        """Close windows of idle keys up to a time, of some keys: the next record closes those of others."""
        keys = await run.stores[self._spec.name].store.due(until_ms, KEYS_PER_SWEEP)
        if keys:
            run.close_until(self._spec.name, until_ms)
        for data in keys:
            cell = await run.cell_if_free(self._spec.name, data)
            if cell is not None and cell.before is not None and cell.before.value is not None:
                waiting = self._sweep_key(run, cell, cell.before, until_ms)
                if waiting is not None:
                    await waiting

    def in_cell(self, run: Run, key: Any, value: Any, cell: Cell) -> Waiting:
        """Apply a record to its window, and close those that the key's time has passed."""
        windows = KeyWindows() if cell.value is None else decode(cell.value)
        start_ms = self._rules.windows.start_of(run.timestamp_ms)
        if cell.is_known:
            return self._repeat(run, key, windows, start_ms)
        if self._rules.is_late(run.timestamp_ms, windows.time_ms, cell.partition.closed_until_ms):
            run.counters.late += 1
            return None
        data = windows.open.get(start_ms)
        made = self._node.update(None if data is None else self._state.deserialize(data), value)
        change = _Change(cell, windows, start_ms)
        if hasattr(made, "__await__"):
            return then(made, self._updated, run, key, change)
        return self._updated(run, key, change, made)

    def _updated(self, run: Run, key: Any, change: _Change, now: Any) -> Waiting:
        cell, windows, start_ms = change
        if now is None:
            changed = without_window(windows, start_ms, run.timestamp_ms)
        else:
            changed = with_window(windows, start_ms, self._state.serialize(now), run.timestamp_ms)
        still, closed = self._rules.close(changed, changed.time_ms)
        cell.after = Entry(encode(still), run.record.offset, 0, self._rules.due_ms(still))
        if self._node.is_final:
            return self._emit_closed(run, key, closed)
        return self._emit(run, key, start_ms, now)

    def _sweep_key(self, run: Run, cell: Cell, before: Entry, until_ms: int) -> Waiting:
        windows = decode(before.value or b"")
        still, closed = self._rules.close(windows, until_ms)
        is_over = not still.open and still.time_ms <= until_ms
        cell.after = Entry(
            None if is_over else encode(still),
            before.stamp,
            before.revision + 1,
            NEVER if is_over else self._rules.due_ms(still),
        )
        if not self._node.is_final or not closed:
            return None
        return self._emit_closed(run, self._spec.key.deserialize(cell.key), closed)

    def _repeat(self, run: Run, key: Any, windows: KeyWindows, start_ms: int) -> Waiting:
        """Pass on the value of the window of a record that was applied before."""
        data = windows.open.get(start_ms)
        if self._node.is_final or data is None:
            return None
        return self._emit(run, key, start_ms, self._state.deserialize(data))

    def _emit_closed(self, run: Run, key: Any, closed: dict[int, bytes]) -> Waiting:
        if not closed:
            return None
        run.closes_windows = True
        return in_turn(
            self._emit(run, key, start_ms, self._state.deserialize(data)) for start_ms, data in closed.items()
        )

    def _emit(self, run: Run, key: Any, start_ms: int, value: Any) -> Waiting:
        return self._following(run, key, WindowValue(start_ms, start_ms + self._rules.windows.size_ms, value))
