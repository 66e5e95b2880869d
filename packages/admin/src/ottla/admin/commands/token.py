"""`ottla token`: delegation tokens, logins that end by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.admin.commands import with_admin
from ottla.client.commands import Count, cluster_options, json_option, show, show_json

if TYPE_CHECKING:
    from ottla.admin import Admin, DelegationToken

_COLUMNS = ("token id", "owner", "requester", "renewers", "issued", "expires", "max expires")


@click.group()
def token() -> None:
    """Create, renew, expire and list delegation tokens."""


@token.command()
@click.option("--owner", metavar="User:NAME", help="Make it for another user, whose tokens one may create.")
@click.option("--renewer", "renewers", multiple=True, metavar="User:NAME", help="May renew it. Repeatable.")
@click.option("--max-lifetime-ms", type=Count(1), help="Renewals end then; the brokers' default without it.")
@json_option
@cluster_options
def create(
    owner: str | None,
    renewers: tuple[str, ...],
    max_lifetime_ms: int | None,
    as_json: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Create a token, and print its id and password.

    It is one for the user of the login.

    Clients log in with them by SCRAM, with sasl_token_auth (in Java: tokenauth="true"). The password is not
    kept anywhere here.

    \b
    Examples:
      ottla token create --profile production
      ottla token create --profile production --renewer User:scheduler --max-lifetime-ms 86400000
    """
    made = with_admin(
        bootstrap_server,
        properties,
        lambda admin: admin.tokens.create(
            owner=owner,
            renewers=renewers,
            max_lifetime_ms=-1 if max_lifetime_ms is None else max_lifetime_ms,
        ),
    )
    if as_json:
        show_json(dict(zip(_KEYS, _row(made), strict=True)) | {"password": made.password})
        return
    _show([made], as_json=False)
    click.echo(f"Password: {made.password}")


@token.command()
@click.argument("token_id")
@click.option("--period-ms", type=Count(1), help="From now on; the brokers' default without it.")
@cluster_options
def renew(token_id: str, period_ms: int | None, bootstrap_server: str, properties: str | None) -> None:
    """Postpone the end of a token.

    \b
    Examples:
      ottla token renew 8Ndk1vXqTb2wQ3 --profile production
      ottla token renew 8Ndk1vXqTb2wQ3 --period-ms 3600000
      ottla token renew -- -b1vXqTb2wQ3  # an id that begins with a dash
    """

    async def use(admin: Admin) -> int:
        hmac = (await _find(admin, token_id)).hmac
        return await admin.tokens.renew(hmac, period_ms=-1 if period_ms is None else period_ms)

    _report_end(token_id, with_admin(bootstrap_server, properties, use))


@token.command()
@click.argument("token_id")
@click.option("--in-ms", "period_ms", type=Count(0), help="End it later than now.")
@cluster_options
def expire(token_id: str, period_ms: int | None, bootstrap_server: str, properties: str | None) -> None:
    """End a token, at once or soon. Logins that were made with it go on until they are renewed.

    \b
    Examples:
      ottla token expire 8Ndk1vXqTb2wQ3
      ottla token expire 8Ndk1vXqTb2wQ3 --in-ms 60000
      ottla token expire -- -b1vXqTb2wQ3  # an id that begins with a dash
    """

    async def use(admin: Admin) -> int:
        hmac = (await _find(admin, token_id)).hmac
        return await admin.tokens.expire(hmac, period_ms=-1 if period_ms is None else period_ms)

    _report_end(token_id, with_admin(bootstrap_server, properties, use))


@token.command(name="list")
@click.option("--owner", "owners", multiple=True, metavar="User:NAME", help="Only of this user. Repeatable.")
@json_option
@cluster_options
def list_tokens(
    owners: tuple[str, ...], as_json: bool, bootstrap_server: str, properties: str | None
) -> None:
    """List tokens, without their passwords.

    They are those that the user of the login may see.

    \b
    Examples:
      ottla token list --profile production
      ottla token list --owner User:anna --json
    """
    found = with_admin(bootstrap_server, properties, lambda admin: admin.tokens.describe(owners or None))
    if found or as_json:
        _show(found, as_json=as_json)
    else:
        click.echo("There is no token.")


async def _find(admin: Admin, token_id: str) -> DelegationToken:
    """Return a token by its id: its secret does not belong into the arguments of a command."""
    for found in await admin.tokens.describe():
        if found.token_id == token_id:
            return found
    raise click.ClickException(
        f"there is no token {token_id!r} that this user may see; see `ottla token list`"
    )


def _row(given: DelegationToken) -> tuple[object, ...]:
    from ottla.client.times import utc_text

    times = (given.issued_at_ms, given.expires_at_ms, given.max_expires_at_ms)
    return (given.token_id, given.owner, given.requester, list(given.renewers), *map(utc_text, times))


_KEYS = [column.replace(" ", "_") for column in _COLUMNS]


def _show(found: list[DelegationToken], *, as_json: bool) -> None:
    show(_COLUMNS, [_row(given) for given in found], as_json=as_json)


def _report_end(token_id: str, end_ms: int) -> None:
    from ottla.client.times import utc_text

    click.echo(f"Token {token_id} ends {utc_text(end_ms)}.")
