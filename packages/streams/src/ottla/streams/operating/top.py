"""`ottla streams top`: reads the status of an app, and shows it once or again and again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import Request, urlopen

import click

from ottla.client.commands import show, show_json
from ottla.streams.operating.status import STATUS_VERSION
from ottla.streams.operating.status_server import DEFAULT_PORT
from ottla.streams.operating.top_view import Status, heading, problems, tables, with_rates

DEFAULT_URL: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
READ_TIMEOUT_S: Final = 5.0
MAX_BYTES: Final = 16 * 1024 * 1024


class StatusUnreadable(Exception):
    """No status came from an address; the message says what to check."""


def status_url(text: str) -> str:
    """Return the address of the status for what a user types: host:port, or a URL."""
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise click.UsageError(f"{text!r} is no address such as {DEFAULT_URL}")
    path = parts.path.rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path or "/status", "", ""))


def read_status(url: str) -> dict[str, Any]:
    """Read a status. Raises StatusUnreadable."""
    try:
        with urlopen(Request(url), timeout=READ_TIMEOUT_S) as answer:
            found = json.loads(answer.read(MAX_BYTES))
    except HTTPError as error:
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
        print_tables(status, before)


def print_tables(status: Status, before: Status | None) -> None:
    """Print plain aligned tables."""
    click.echo(heading(status))
    for line in problems(status):
        click.echo(f"  {line}")
    for table in tables(status, before):
        click.echo()
        click.echo(table.title)
        show(table.columns, table.rows, as_json=False)


def follow(read: Callable[[], Status], sleep: Callable[[], object], *, as_json: bool) -> None:
    """Show the status until Ctrl+C: a live view, or one table after the other without a terminal."""
    if as_json:
        before = None
        while True:
            status = read()
            click.echo(json.dumps(with_rates(status, before), default=str))
            before = status
            sleep()
    with _screen() as update:
        before = None
        while True:
            try:
                status = read()
            except StatusUnreadable as error:
                if before is None:
                    raise
                update(None, None, str(error))
            else:
                update(status, before, "")
                before = status
            sleep()


@contextmanager
def _screen() -> Iterator[Callable[[Status | None, Status | None, str], None]]:
    """Return what shows a status: on the terminal in place, elsewhere as plain tables."""
    if not sys.stdout.isatty():
        yield _print_plain
        return
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as live:

        def update(status: Status | None, before: Status | None, error: str) -> None:
            live.update(_rendered(status, before, error), refresh=True)

        yield update


def _print_plain(status: Status | None, before: Status | None, error: str) -> None:
    if status is None:
        click.echo(error)
        return
    print_tables(status, before)
    click.echo()


def _rendered(status: Status | None, before: Status | None, error: str) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if status is None:
        return Text(error, style="red")
    parts: list[Any] = [Text(heading(status), style="bold" if status["healthy"] else "bold red")]
    parts += [Text(f"  {line}", style="red") for line in problems(status)]
    for table in tables(status, before):
        shown = Table(title=table.title, title_justify="left", box=None, header_style="bold", pad_edge=False)
        for column in table.columns:
            shown.add_column(column.upper(), no_wrap=True)
        for row in table.rows:
            shown.add_row(*("-" if cell is None else _text(cell) for cell in row))
        parts += [Text(""), shown]
    parts += [Text(""), Text("Ctrl+C ends", style="dim")]
    return Group(*parts)


def _text(cell: object) -> str:
    return ("yes" if cell else "no") if isinstance(cell, bool) else str(cell)
