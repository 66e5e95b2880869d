"""`ottla clients`: the clients that are connected to brokers, with name and version, rates and quotas."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from ottla.admin.commands.metrics_pages import ADVICE, metrics_options, read_page, unreadable
from ottla.client.commands import json_option, show, show_json

_COLUMNS: Final = (
    "broker", "client id", "software", "version", "user", "address", "listener",
    "produce B/s", "fetch B/s", "request %",
)  # fmt: skip
_MAX_CELL_LENGTH: Final = 60


@click.command()
@metrics_options
@json_option
def clients(pages: tuple[str, ...], token_file: str | None, as_json: bool) -> None:
    """List the clients that are connected to brokers.

    Each has the name and version of its library, its user, its address, and its rates beside their quotas,
    from the page of the broker's metrics: start the broker with `--metrics-port 9308`, or with
    metrics.port=9308 in its properties.

    A rate stands before its quota; without a quota it is not measured.

    \b
    Examples:
      ottla clients --metrics http://127.0.0.1:9308
      ottla clients --metrics https://one:9308 --metrics https://two:9308 --token-file metrics.token --json
    """
    if not pages:
        raise click.UsageError(f"give --metrics URL. {ADVICE}")
    found = [_page(page, token_file) for page in pages]
    if as_json:
        show_json(found)
        return
    if not any(page["clients"] for page in found):
        click.echo("No client is connected.")
        return
    show(
        _COLUMNS,
        [_row(page["broker"], client) for page in found for client in page["clients"]],
        as_json=False,
        max_cell_length=_MAX_CELL_LENGTH,
    )
    if left_out := sum(page["left_out"] for page in found):
        click.echo(f"{left_out} more connections are not shown", err=True)


def _page(url: str, token_file: str | None) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(read_page(url, "/clients", token_file))
    except ValueError as error:
        raise unreadable(url, error) from None
    return found


def _row(broker: int, client: dict[str, Any]) -> tuple[object, ...]:
    usages = (_usage(client[kind]) for kind in ("produce", "fetch", "request"))
    keys = ("client_id", "software", "version", "user", "address", "listener")
    return broker, *(client[key] for key in keys), *usages


def _usage(usage: dict[str, float] | None) -> str | None:
    return None if usage is None else f"{usage['rate']:,.0f} of {usage['quota']:,.0f}"
