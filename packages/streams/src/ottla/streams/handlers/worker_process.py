"""The inside of a worker process: the user's function, called with records that came as plain data."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection, current_process, parent_process
from typing import Any, NamedTuple

from ottla.consumer import ConsumerRecord
from ottla.producer import ProducerRecord
from ottla.protocol.records import TimestampType
from ottla.streams.errors import RemoteError
from ottla.streams.handlers.arguments import Call, Function, ValueFormat, arguments_of
from ottla.streams.handlers.context import Context


class Outcome(NamedTuple):
    """The result of a call in a worker process: the records that it emitted, or the pickled exception."""

    emitted: tuple[ProducerRecord, ...]
    error: bytes | None


def is_starting() -> bool:
    """Return whether this is a spawned process that still imports the program it is for."""
    return getattr(current_process(), "_inheriting", False)


def begin() -> None:
    """Prepare a new process: Ctrl-C is left to the parent, and without a parent the process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent watcher", daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        # A killed parent closes no queue that its children would see the end of.
        connection.wait([parent.sentinel])
        os._exit(1)


def report_pid(initialize: Callable[..., None], arguments: tuple[Any, ...]) -> int:
    """Initialize the process, and return its id."""
    initialize(*arguments)
    return os.getpid()


_loaded: list[Call] = []
"""The handler of this process."""


def load_handler(function: Function, value_format: ValueFormat) -> None:
    """Keep the handler that the process is for."""
    _loaded[:] = [arguments_of(function, value_format).call_of(function)]


def handle_in_worker(records: Sequence[RecordData], attempt: int) -> Outcome:
    """Call the process's handler. It never raises: an exception that cannot be loaded breaks the pool."""
    given = [record_of(record) for record in records]
    context = Context(given, attempt, None)
    try:
        _loaded[0](given, context)
        emitted = tuple(context.emitted)
        pickle.dumps(emitted)
    except BaseException as error:
        return Outcome((), portable(error))
    return Outcome(emitted, None)


def raise_or_emitted(outcome: Outcome) -> Sequence[ProducerRecord]:
    """Return what a call emitted, or raise what it raised; in the parent."""
    if outcome.error is None:
        return outcome.emitted
    error = pickle.loads(outcome.error)
    assert isinstance(error, BaseException)
    raise error


def portable(error: BaseException) -> bytes:
    """Pickle an exception with its traceback as a note; one that cannot be pickled becomes a RemoteError."""
    trace = "".join(traceback.format_exception(error))
    error.add_note(f"raised in worker process {os.getpid()}:\n{trace}")
    try:
        data = pickle.dumps(error)
        # Classes whose __init__ takes other arguments than they pass on fail only when they are loaded.
        pickle.loads(data)
    except Exception:
        return pickle.dumps(
            RemoteError(_importable(type(error)), type(error).__qualname__, str(error), trace)
        )
    return data


def _importable(kind: type[BaseException]) -> type[BaseException]:
    """Return the most specific class of an exception that the parent can import."""
    for base in kind.__mro__:
        try:
            pickle.dumps(base)
        except Exception:
            continue
        return base
    return Exception


class RecordData(NamedTuple):
    """The parts of a record; it can be pickled."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_type: int
    leader_epoch: int


def data_of(record: ConsumerRecord) -> RecordData:
    """Return the parts of a record."""
    return RecordData(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        record.key,
        record.value,
        record.headers,
        int(record.timestamp_type),
        record.leader_epoch,
    )


def record_of(data: RecordData) -> ConsumerRecord:
    """Return an equal record."""
    return ConsumerRecord(
        data.topic,
        data.partition,
        data.offset,
        data.timestamp_ms,
        data.key,
        data.value,
        data.headers,
        timestamp_type=TimestampType(data.timestamp_type),
        leader_epoch=data.leader_epoch,
    )
