"""The handlers of a member: each writes to the journal what it does. Worker processes import this module."""

from __future__ import annotations

import asyncio
import os
import random
import time
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from streams_effects import Database, database
from streams_journal import Journal, Kind
from streams_load import Change, change_of

from ottla.consumer import ConsumerRecord
from ottla.streams import Context

SETTINGS_VARIABLE = "OTTLA_STREAMS_CHAOS"
IMAGES = "images"


class Settings(msgspec.Struct, frozen=True):
    """The settings of a member, from its environment."""

    member: int
    servers: str
    group: str
    topic: str
    journal: str
    effect: str
    database: str
    longest_ms: int
    static_id: str | None
    strategy: str
    metadata_bytes: int


class Image(msgspec.Struct, array_like=True, frozen=True):
    """The output of a handler, sent twice for each record: at its begin, and right before its end."""

    key: int
    number: int
    part: int
    member: int
    attempt: int


class Flaky(Exception):
    """A failure that is over at the next attempt."""


class Poisoned(Exception):
    """A failure of every attempt."""


@cache
def settings() -> Settings:
    """Return the settings of this process."""
    return msgspec.json.decode(os.environ[SETTINGS_VARIABLE], type=Settings)


@cache
def journal() -> Journal:
    """Return the journal of this process."""
    return Journal(Path(settings().journal), settings().member)


@cache
def _database() -> Database:
    return database(settings().database)


class _Attempt:
    """One call of a handler for one record; what it raises is in the journal."""

    def __init__(self, record: ConsumerRecord, number: int | None = None) -> None:
        self.change = change_of(record.value)
        self.number = random.getrandbits(31) if number is None else number
        self._at = (record.partition, record.offset, self.change.key, self.change.number, self.number)
        journal().write(Kind.STARTED, *self._at)

    def fail(self) -> None:
        journal().write(Kind.FAILED, *self._at)

    def finish(self) -> None:
        journal().write(Kind.FINISHED, *self._at)

    def image(self, part: int) -> bytes:
        return msgspec.msgpack.encode(
            Image(self.change.key, self.change.number, part, settings().member, self.number)
        )


def _raise_if_due(change: Change, attempt: int) -> None:
    if change.is_poisoned:
        raise Poisoned(f"record {change.number} of key {change.key} always fails")
    if change.is_flaky and attempt == 1:
        raise Flaky


async def handle(record: ConsumerRecord, context: Context) -> None:
    """Wait for a random time, and fail at times."""
    one = _Attempt(record)
    try:
        await asyncio.sleep(random.random() * settings().longest_ms / 1_000)
        _raise_if_due(one.change, context.attempt)
    except Exception:
        one.fail()
        raise
    one.finish()


async def handle_and_send(record: ConsumerRecord, context: Context) -> None:
    """Send an output, wait or fail, and send another one."""
    one = _Attempt(record)
    try:
        await context.send(IMAGES, one.image(0), key=record.key)
        await asyncio.sleep(random.random() * settings().longest_ms / 1_000)
        _raise_if_due(one.change, context.attempt)
        await context.send(IMAGES, one.image(1), key=record.key)
    except Exception:
        one.fail()
        raise
    one.finish()


def handle_on_process(record: ConsumerRecord, context: Context) -> None:
    """Do what `handle` does, on a process of the member."""
    one = _Attempt(record)
    try:
        time.sleep(random.random() * settings().longest_ms / 1_000)
        _raise_if_due(one.change, context.attempt)
    except Exception:
        one.fail()
        raise
    one.finish()


def apply(records: list[ConsumerRecord], context: Context) -> None:
    """Apply changes to the database: a transaction with the marks of their message ids."""
    number = random.getrandbits(31)
    attempts = [_Attempt(record, number) for record in records]
    try:
        time.sleep(random.random() * settings().longest_ms / 1_000)
        if any(each.change.is_flaky for each in attempts) and context.attempt == 1:
            raise Flaky
        _database().apply(records, [each.change for each in attempts])
    except Exception:
        for each in attempts:
            each.fail()
        raise
    for each in attempts:
        each.finish()


HANDLERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "none": (handle, {"max_concurrency": 1_000}),
    "processes": (handle_on_process, {"run_on": "processes", "max_processes": 4}),
    "transactions": (
        handle_and_send,
        {"max_concurrency": 1_000, "processing_guarantee": "exactly-once", "transaction_timeout_ms": 6_000},
    ),
    "sqlite": (apply, {"batch_size": 50, "batch_of": "any", "max_threads": 16}),
    "postgres": (apply, {"batch_size": 20, "batch_of": "any", "max_threads": 8}),
}
"""The handler of each effect, and its settings."""
