"""Aggregates: how a record changes the value of its key, or of its key and window, and when windows close."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NamedTuple

from ottla.streams.errors import StateUndecodable
from ottla.streams.handlers.context import key_hash
from ottla.streams.language.declarations import Aggregate
from ottla.streams.language.runs import Cell, Run, Step, Waiting, then, without
from ottla.streams.language.windows import (
    KeyWindows,
    WindowRules,
    WindowValue,
    decode,
    encode,
    with_window,
    without_window,
)
from ottla.streams.state.store import NEVER, Entry

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

    def state_of(self, run: Run, cell: Cell, data: bytes) -> Any:
        """Return the state of bytes. Raises StateUndecodable."""
        try:
            return self._state.deserialize(data)
        except Exception as error:
            raise self.undecodable(run, cell.key, f"{self._state}", error) from error

    def undecodable(self, run: Run, key: bytes, form: str, error: Exception) -> StateUndecodable:
        """Return the error of a key's state that is not in the form that the program says."""
        where = f"the state of store {self._spec.name!r} (key {key_hash(key)})"
        remedy = f"it is no {form}: give the store another name=, or delete its changelog to begin again"
        return run.cannot_decode(where, remedy, error)


class Aggregating(_OfKeys):
    """Keeps one value per key, and passes each new one on."""

    def in_cell(self, run: Run, key: Any, value: Any, cell: Cell) -> Waiting:
        """Apply a record; one that was applied before passes the value on as it is now."""
        now = None if cell.value is None else self.state_of(run, cell, cell.value)
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
        windows = KeyWindows() if cell.value is None else self._windows_of(run, cell.key, cell.value)
        start_ms = self._rules.windows.start_of(run.timestamp_ms)
        if cell.is_known:
            return self._repeat(run, key, cell, windows.open.get(start_ms), start_ms)
        if self._rules.is_late(run.timestamp_ms, windows.time_ms, cell.partition.closed_until_ms):
            run.counters.late += 1
            return None
        data = windows.open.get(start_ms)
        made = self._node.update(None if data is None else self.state_of(run, cell, data), value)
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
            return self._emit_closed(run, key, cell, closed)
        return self._emit(run, key, start_ms, now)

    def _windows_of(self, run: Run, key: bytes, data: bytes) -> KeyWindows:
        try:
            return decode(data)
        except Exception as error:
            raise self.undecodable(run, key, "state of windows", error) from error

    def _sweep_key(self, run: Run, cell: Cell, before: Entry, until_ms: int) -> Waiting:
        windows = self._windows_of(run, cell.key, before.value or b"")
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
        try:
            key = self._spec.key.deserialize(cell.key)
        except Exception as error:
            raise self.undecodable(run, cell.key, f"{self._spec.key} as key", error) from error
        return self._emit_closed(run, key, cell, closed)

    def _repeat(self, run: Run, key: Any, cell: Cell, data: bytes | None, start_ms: int) -> Waiting:
        """Pass on the value of the window of a record that was applied before."""
        if self._node.is_final or data is None:
            return None
        return self._emit(run, key, start_ms, self.state_of(run, cell, data))

    def _emit_closed(self, run: Run, key: Any, cell: Cell, closed: dict[int, bytes]) -> Waiting:
        if not closed:
            return None
        run.closes_windows = True
        values = {start_ms: self.state_of(run, cell, data) for start_ms, data in closed.items()}
        emitting = (partial(self._emit, run, key, start_ms, value) for start_ms, value in values.items())
        return without(None, run, emitting)

    def _emit(self, run: Run, key: Any, start_ms: int, value: Any) -> Waiting:
        return self._following(run, key, WindowValue(start_ms, start_ms + self._rules.windows.size_ms, value))
