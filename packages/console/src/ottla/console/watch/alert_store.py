"""Alerts beside the history: what stands, what was raised and cleared, and silences survive a restart."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

from ottla.console.watch.alerts import MOST_EVENTS, Alert, Alerts, Event, Silence
from ottla.console.watch.history import KEPT_FOR_S, History
from ottla.console.watch.rule_files import Rule
from ottla.console.watch.rules import Readings, held_by
from ottla.console.watch.sending import Outbox

_log = logging.getLogger(__name__)

MOST_SILENCES: Final = 200

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS alerts (
    rule TEXT NOT NULL, cluster TEXT NOT NULL, subject TEXT NOT NULL, since_s INTEGER NOT NULL,
    text TEXT NOT NULL, is_sent INTEGER NOT NULL, seen_s INTEGER NOT NULL,
    PRIMARY KEY (rule, cluster, subject)
);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, at_s INTEGER NOT NULL, kind TEXT NOT NULL, rule TEXT NOT NULL,
    cluster TEXT NOT NULL, subject TEXT NOT NULL, text TEXT NOT NULL, is_silent INTEGER NOT NULL,
    since_s INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS silences (
    id INTEGER PRIMARY KEY, rule TEXT NOT NULL, cluster TEXT NOT NULL, subject TEXT NOT NULL,
    from_s INTEGER NOT NULL, until_s INTEGER NOT NULL, reason TEXT NOT NULL, author TEXT NOT NULL
);
"""
_Row = tuple[str, str, str, int, bool]
_Change = Callable[[sqlite3.Connection], None]


class StoredAlerts:
    """Judges readings, sends what they raise and clear, and keeps it in the file of the history.

    A file that cannot be written leaves the alerts in memory, and is logged.
    """

    def __init__(self, history: History, alerts: Alerts, outboxes: Sequence[Outbox] = ()) -> None:
        self.alerts = alerts
        self.outboxes = tuple(outboxes)
        self._history = history
        self._stored: frozenset[_Row] = frozenset()

    @classmethod
    async def load(
        cls, history: History, rules: Iterable[Rule], clusters: Iterable[str], outboxes: Sequence[Outbox] = ()
    ) -> StoredAlerts:
        """Return the alerts of a file, of these rules and clusters. A file that cannot be read is logged."""
        names = frozenset(clusters)
        try:
            standing, events, silences = await history.run(_read)
        except sqlite3.Error as error:
            _log.warning("the alerts cannot be read from the history", extra={"reason": str(error)})
            return cls(history, Alerts(rules), outboxes)
        found = [alert for alert in standing if alert.cluster in names]
        stored = cls(history, Alerts(rules, standing=found, events=events, silences=silences), outboxes)
        stored._stored = frozenset(map(_row, standing))
        return stored

    async def judge(self, readings: Readings, at_s: int) -> None:
        """Judge the readings of a cluster."""
        held = await asyncio.to_thread(held_by, self.alerts.rules, readings)
        step = self.alerts.step(readings, at_s, held)
        for event in step.events:
            facts = {"rule": event.rule, "cluster": event.cluster, "subject": event.subject}
            said = "an alert is raised" if event.kind == "raised" else "an alert is cleared"
            _log.warning(said, extra={**facts, "text": event.text})
        for event in step.notices:
            for outbox in self.outboxes:
                outbox.put(event)
        over = self.alerts.forget_silences(at_s)
        alerts = [replace(alert, is_sent=self._is_delivered(alert)) for alert in self.alerts.raised]
        standing = frozenset(map(_row, alerts))
        is_new = bool(step.events or over) or standing != self._stored
        if is_new and await self._keep(lambda database: _write(database, alerts, step.events, at_s)):
            self._stored = standing

    async def silence(self, silence: Silence) -> None:
        """Begin a silence, and keep it. Raises sqlite3.Error where it would end with the process."""
        number = await self._history.run(lambda database: _add_silence(database, silence))
        event = self.alerts.silence(replace(silence, id=number))
        await self._keep(lambda database: _add_events(database, [event]))

    async def end_silence(self, number: int, at_s: int, author: str) -> None:
        """End a silence before its time."""
        event = self.alerts.end_silence(number, at_s, author)
        if event is None:
            return

        def end(database: sqlite3.Connection) -> None:
            database.execute("DELETE FROM silences WHERE id = ?", (number,))
            _add_events(database, [event])

        await self._keep(end)

    def _is_delivered(self, alert: Alert) -> bool:
        """Whether no target waits for the message any more: after a restart it is sent again otherwise."""
        return alert.is_sent and not any(box.is_pending(alert.raised_id) for box in self.outboxes)

    async def _keep(self, change: _Change) -> bool:
        try:
            await self._history.run(change)
        except sqlite3.Error as error:
            _log.warning("the alerts cannot be written to the history", extra={"reason": str(error)})
            return False
        return True


def _row(alert: Alert) -> _Row:
    return (*alert.key, alert.since_s, alert.is_sent)


# --- on a thread


def _read(database: sqlite3.Connection) -> tuple[list[Alert], list[Event], list[Silence]]:
    database.executescript(_SCHEMA)
    standing = [
        Alert(Rule(rule, ""), cluster, subject, since_s, text, True, bool(is_sent), seen_s)
        for rule, cluster, subject, since_s, text, is_sent, seen_s in _rows(
            database, "SELECT rule, cluster, subject, since_s, text, is_sent, seen_s FROM alerts"
        )
    ]
    events = [
        Event(at_s, kind, rule, cluster, subject, text, bool(is_silent), since_s)
        for at_s, kind, rule, cluster, subject, text, is_silent, since_s in _rows(
            database,
            "SELECT at_s, kind, rule, cluster, subject, text, is_silent, since_s FROM "
            f"(SELECT * FROM events ORDER BY id DESC LIMIT {MOST_EVENTS}) ORDER BY id",
        )
    ]
    silences = [
        Silence(rule, cluster, subject, from_s, until_s, reason, author, number)
        for number, rule, cluster, subject, from_s, until_s, reason, author in _rows(
            database, "SELECT id, rule, cluster, subject, from_s, until_s, reason, author FROM silences"
        )
    ]
    return standing, events, silences


def _rows(database: sqlite3.Connection, query: str) -> list[tuple]:  # type: ignore[type-arg]
    with closing(database.execute(query)) as found:
        return found.fetchall()


def _write(
    database: sqlite3.Connection, standing: Sequence[Alert], events: Sequence[Event], at_s: int
) -> None:
    database.execute("DELETE FROM alerts")
    database.executemany(
        "INSERT INTO alerts VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(*alert.key, alert.since_s, alert.text, alert.is_sent, alert.seen_s) for alert in standing],
    )
    _add_events(database, events)
    database.execute("DELETE FROM events WHERE at_s < ?", (at_s - KEPT_FOR_S,))
    database.execute("DELETE FROM silences WHERE until_s <= ?", (at_s,))


def _add_events(database: sqlite3.Connection, events: Sequence[Event]) -> None:
    database.executemany(
        "INSERT INTO events (at_s, kind, rule, cluster, subject, text, is_silent, since_s) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (event.at_s, event.kind, event.rule, event.cluster, event.subject, event.text, event.is_silent,
             event.since_s)
            for event in events
        ],
    )  # fmt: skip
    database.execute("DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?", (10 * MOST_EVENTS,))


def _add_silence(database: sqlite3.Connection, silence: Silence) -> int:
    number = database.execute(
        "INSERT INTO silences (rule, cluster, subject, from_s, until_s, reason, author) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (silence.rule, silence.cluster, silence.subject, silence.from_s, silence.until_s, silence.reason,
         silence.author),
    ).lastrowid  # fmt: skip
    return int(number or 0)
