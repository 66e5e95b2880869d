"""Options that name the metrics pages of brokers, and reading from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    F = TypeVar("F", bound=Callable[..., Any])

_TIMEOUT_S: Final = 10
ADVICE: Final = (
    "A broker has such a page with `ottla broker start --metrics-port 9308`, or metrics.port=9308."
)


def _checked(_: click.Context, __: click.Parameter, pages: tuple[str, ...]) -> tuple[str, ...]:
    for url in pages:
        if not url.startswith(("http://", "https://")):
            raise click.UsageError(f"--metrics needs a URL with http:// or https://, not {url!r}")
    return pages


def metrics_options(command: F) -> F:
    """Add --metrics and --token-file: the command takes `pages` and `token_file`."""
    command = click.option(
        "--token-file",
        type=click.Path(exists=True, dir_okay=False),
        help="File with the token of the pages.",
    )(command)
    return click.option(
        "--metrics", "pages", multiple=True, metavar="URL", callback=_checked,
        help="The metrics page of a broker, as http://127.0.0.1:9308. Repeatable.",
    )(command)  # fmt: skip


def read_page(url: str, path: str, token_file: str | None) -> bytes:
    """Return a document beside the metrics of a broker. Raises click's errors, with what to change."""
    import urllib.error
    import urllib.request
    from http.client import HTTPException

    address = url.rstrip("/").removesuffix("/metrics") + path
    token = None if token_file is None else Path(token_file).read_text(encoding="utf-8").strip()
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(address, headers=headers), timeout=_TIMEOUT_S
        ) as page:
            found: bytes = page.read()
    except urllib.error.HTTPError as error:
        error.close()  # it is the answer, with its socket
        advice = ": give --token-file" if error.code in (401, 403) else ""
        raise click.ClickException(f"{address} answered {error.code} {error.reason}{advice}") from None
    except (OSError, ValueError, HTTPException) as error:
        raise unreadable(address, getattr(error, "reason", error)) from None
    return found


def unreadable(address: str, reason: object) -> click.ClickException:
    """Return the error of a page that a broker does not serve."""
    return click.ClickException(f"{address} cannot be read: {reason}. {ADVICE}")
