"""`ottla streams top`: reads the status of an app, and shows it as tables, once or again and again."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import Request, urlopen

import click

from ottla.admin.commands.top import terminal_view
from ottla.client.commands import show_json, table_lines
from ottla.streams.operating.status import STATUS_VERSION
from ottla.streams.operating.status_server import DEFAULT_PORT

DEFAULT_URL: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
READ_TIMEOUT_S: Final = 5.0
MAX_BYTES: Final = 16 * 1024 * 1024

Status = Mapping[str, Any]

PROCESSOR_COLUMNS = (
    "handler", "group", "state", "rec/s", "lag", "lanes", "in flight", "oldest", "buffered", "parked",
    "retries", "dead", "dupes", "commit errors",
)  # fmt: skip
STREAM_COLUMNS = ("late", "no key", "no value")
"""Counters of records that streams dropped; shown when they are not 0."""
_DROPPED = ("late_total", "keyless_total", "valueless_total")
PARTITION_COLUMNS = (
    "topic", "partition", "offset", "lag", "rec/s", "in flight", "failed", "paused", "metadata",
    "oldest key", "age",
)  # fmt: skip


class StatusUnreadable(Exception):
    """No status came from an address; the message says what to check."""


def status_url(text: str) -> str:
    """Return the address of the status for what a user types: host:port, or a URL."""
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise click.UsageError(f"{text!r} is no address such as {DEFAULT_URL}")
    path = parts.path.rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path or "/status", "", ""))


def read_status(url: str, token_file: Path | None = None, ca_file: Path | None = None) -> dict[str, Any]:
    """Read a status, with the token of a file. Raises StatusUnreadable."""
    fields = {} if token_file is None else {"Authorization": f"Bearer {token_file.read_text().strip()}"}
    trusted = ssl.create_default_context(cafile=ca_file) if url.startswith("https:") else None
    try:
        with urlopen(Request(url, headers=fields), timeout=READ_TIMEOUT_S, context=trusted) as answer:
            found = json.loads(answer.read(MAX_BYTES))
    except HTTPError as error:
        if error.code == HTTPStatus.UNAUTHORIZED:
            raise StatusUnreadable(f"{url} wants a token: give its file by --token-file") from None
        raise StatusUnreadable(f"{url} answered {error.code}: is that the status of a streams app?") from None
    except (URLError, OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise StatusUnreadable(
            f"no app answers at {url} ({reason}); start it with: ottla streams run app.py --status "
            f"{urlsplit(url).netloc}"
        ) from None
    except ValueError:
        raise StatusUnreadable(f"{url} does not answer with the status of a streams app") from None
    if not isinstance(found, dict) or found.get("version") != STATUS_VERSION:
        raise StatusUnreadable(f"{url} answers with another version of the status; update both sides")
    return found


def show_once(read: Callable[[], Status], sleep: Callable[[], object], *, as_json: bool) -> None:
    """Print the status once, with rates between two readings."""
    before = read()
    sleep()
    status = read()
    if as_json:
        show_json(with_rates(status, before))
    else:
        click.echo("\n".join(view(status, before)))


def view(status: Status, before: Status | None) -> list[str]:
    """Return the lines of plain aligned tables."""
    lines = [heading(status), *(f"! {line}" for line in problems(status))]
    for table in tables(status, before):
        lines += ["", table.title, *table_lines(table.columns, table.rows)]
    return lines


def follow(read: Callable[[], Status], sleep: Callable[[], object], *, as_json: bool) -> None:
    """Show the status until Ctrl+C: in place at a terminal, elsewhere one table after the other."""
    if as_json:
        before = None
        while True:
            status = read()
            click.echo(json.dumps(with_rates(status, before), default=str))
            before = status
            sleep()
    with terminal_view() as draw:
        before = None
        while True:
            try:
                status = read()
            except StatusUnreadable as error:
                if before is None:
                    raise
                draw([str(error)])
            else:
                draw([*view(status, before), ""])
                before = status
            sleep()


class Table(NamedTuple):
    """Rows under columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def heading(status: Status) -> str:
    """Return a line about the app."""
    state = "healthy" if status["healthy"] else "UNHEALTHY"
    return f"{status['app']}: {state}, {_count(len(status['processors']), 'handler')}"


def problems(status: Status) -> list[str]:
    """Return a line for each reason why it is not healthy."""
    return [
        f"{processor['name']}: {reason}"
        for processor in status["processors"]
        for reason in processor["reasons"]
    ]


def tables(status: Status, before: Status | None) -> list[Table]:
    """Return the handlers, and the partitions of each. Rates need a status from `before`."""
    elapsed_s = _elapsed_s(status, before)
    earlier = {} if before is None else {processor["name"]: processor for processor in before["processors"]}
    rows = [
        _processor(processor, earlier.get(processor["name"]), elapsed_s) for processor in status["processors"]
    ]
    dropped = [[processor.get(name, 0) for name in _DROPPED] for processor in status["processors"]]
    if any(map(any, dropped)):
        rows = [(*row, *more) for row, more in zip(rows, dropped, strict=True)]
        found = [Table("handlers", (*PROCESSOR_COLUMNS, *STREAM_COLUMNS), rows)]
    else:
        found = [Table("handlers", PROCESSOR_COLUMNS, rows)]
    for processor in status["processors"]:
        each_partition = _partitions(processor, earlier.get(processor["name"]), elapsed_s)
        found.append(Table(f"partitions of {processor['name']}", PARTITION_COLUMNS, each_partition))
    return found


def with_rates(status: Status, before: Status | None) -> dict[str, Any]:
    """Return a status with `records_per_s` of handlers, for programs."""
    elapsed_s = _elapsed_s(status, before)
    earlier = {} if before is None else {processor["name"]: processor for processor in before["processors"]}
    processors = [
        {
            **processor,
            "records_per_s": _rate(
                processor, earlier.get(processor["name"]), "record_handled_total", elapsed_s
            ),
        }
        for processor in status["processors"]
    ]
    return {**status, "processors": processors}


def _processor(processor: Status, before: Status | None, elapsed_s: float) -> Sequence[object]:
    lags = [partition["lag"] for partition in processor["partitions"] if partition["lag"] is not None]
    return (
        processor["name"],
        processor["group"],
        "healthy" if processor["healthy"] else "unhealthy",
        _shown_rate(_rate(processor, before, "record_handled_total", elapsed_s)),
        sum(lags) if lags else None,
        processor["lanes"],
        processor["in_flight"],
        _duration(processor["oldest_in_flight_ms"]) if processor["in_flight"] else None,
        processor["buffered_records"],
        processor["parked"],
        processor["retry_total"],
        processor["dead_letter_total"],
        processor["dedupe_hit_total"],
        processor["commit_error_total"],
    )


def _partitions(processor: Status, before: Status | None, elapsed_s: float) -> list[Sequence[object]]:
    earlier = {} if before is None else {_place(partition): partition for partition in before["partitions"]}
    rows: list[Sequence[object]] = []
    for partition in processor["partitions"]:
        oldest = partition["oldest"] or {}
        row = (
            partition["topic"],
            partition["partition"],
            partition["offset"],
            partition["lag"],
            _shown_rate(_rate(partition, earlier.get(_place(partition)), "handled", elapsed_s)),
            partition["in_flight"],
            partition["failed"],
            partition["paused"],
            partition["metadata_bytes"],
            oldest.get("key_hash"),
            _duration(oldest["age_ms"]) if oldest else None,
        )
        rows.append(row)
    return rows


def _place(partition: Status) -> tuple[str, int]:
    return partition["topic"], partition["partition"]


def _elapsed_s(status: Status, before: Status | None) -> float:
    return 0.0 if before is None else (status["monotonic_ms"] - before["monotonic_ms"]) / 1_000


def _rate(now: Status, before: Status | None, name: str, elapsed_s: float) -> float | None:
    """Return a counter's growth per second; None without an earlier value, or after a restart."""
    if before is None or elapsed_s <= 0 or now[name] < before[name]:
        return None
    grown: int = now[name] - before[name]
    return round(grown / elapsed_s, 1)


def _shown_rate(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:,.0f}"


def _duration(milliseconds: float) -> str:
    """Return a time in the unit that fits: 12 ms, 3.4 s, 2 min."""
    if milliseconds < 1_000:
        return f"{milliseconds:.0f} ms"
    if milliseconds < 120_000:
        return f"{milliseconds / 1_000:.1f} s"
    return f"{milliseconds / 60_000:.0f} min"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
