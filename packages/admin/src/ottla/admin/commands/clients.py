"""`ottla clients`: the clients that are connected to brokers, with name and version, rates and quotas."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import click

from ottla.client.commands import json_option, show, show_json

_COLUMNS: Final = (
    "broker", "client id", "software", "version", "user", "address", "listener",
    "produce B/s", "fetch B/s", "request %",
)  # fmt: skip
_MAX_CELL_LENGTH: Final = 60
_TIMEOUT_S: Final = 10
ADVICE: Final = (
    "A broker has such a page with `ottla broker start --metrics-port 9308`, or metrics.port=9308."
)


@click.command()
@click.option(
    "--metrics", "pages", multiple=True, metavar="URL",
    help="The metrics page of a broker, as http://127.0.0.1:9308. Repeatable.",
)  # fmt: skip
@click.option(
    "--token-file", type=click.Path(exists=True, dir_okay=False), help="File with the token of these pages."
)
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
    token = None if token_file is None else Path(token_file).read_text().strip()
    found = [_page(page, token) for page in pages]
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


def _page(url: str, token: str | None) -> dict[str, Any]:
    address = url.rstrip("/").removesuffix("/metrics") + "/clients"
    if not address.startswith(("http://", "https://")):
        raise click.UsageError(f"--metrics needs a URL with http:// or https://, not {url!r}")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(address, headers=headers), timeout=_TIMEOUT_S
        ) as page:
            found: dict[str, Any] = json.load(page)
    except urllib.error.HTTPError as error:
        error.close()  # it is the answer, with its socket
        advice = ": give --token-file" if error.code in (401, 403) else ""
        raise click.ClickException(f"{address} answered {error.code} {error.reason}{advice}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)  # of a connection that was refused
        raise click.ClickException(f"{address} cannot be read: {reason}. {ADVICE}") from None
    return found


def _row(broker: int, client: dict[str, Any]) -> tuple[object, ...]:
    usages = (_usage(client[kind]) for kind in ("produce", "fetch", "request"))
    keys = ("client_id", "software", "version", "user", "address", "listener")
    return broker, *(client[key] for key in keys), *usages


def _usage(usage: dict[str, float] | None) -> str | None:
    return None if usage is None else f"{usage['rate']:,.0f} of {usage['quota']:,.0f}"
