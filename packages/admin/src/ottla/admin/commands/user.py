"""`ottla user`: users with SCRAM passwords."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ottla.admin.commands import with_admin
from ottla.client.commands import cluster_options, json_option, secret_options, secret_source, show

if TYPE_CHECKING:
    from ottla.admin import Admin, ScramCredential
    from ottla.admin.users import ScramMechanism

_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def _mechanism_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--mechanism", "mechanisms", multiple=True, type=click.Choice(_MECHANISMS, case_sensitive=False),
        help=text,
    )  # fmt: skip


@click.group()
def user() -> None:
    """Add, list and remove users that log in with SCRAM."""


@user.command()
@click.argument("name")
@secret_options("password", "password")
@_mechanism_option("The mechanism of the login; SCRAM-SHA-512 by default. Repeatable.")
@click.option(
    "--iterations", type=click.IntRange(4_096, 16_384), default=4_096, show_default=True,
    metavar="NUMBER", help="The rounds of the hash, from 4096 to 16384.",
)  # fmt: skip
@cluster_options
def add(
    name: str,
    mechanisms: tuple[ScramMechanism, ...],
    iterations: int,
    bootstrap_server: str,
    properties: str | None,
    **password: str | None,
) -> None:
    """Add a user, or change its password. Asks for the password if no option says where it is.

    The brokers get a salted hash. No option takes the password itself: every user of this machine can read
    the arguments of commands.

    \b
    Examples:
      ottla user add anna
      ottla user add anna --password-env ANNAS_PASSWORD --mechanism SCRAM-SHA-256
      ottla user add billing --password-command "pass show kafka/billing"
    """
    secret = _password(name, password)
    chosen = mechanisms or ("SCRAM-SHA-512",)

    async def use(admin: Admin) -> None:
        for mechanism in chosen:
            await admin.users.set_password(name, secret, mechanism, iterations=iterations)

    with_admin(bootstrap_server, properties, use)
    click.echo(f"Set the password of {name} for {' and '.join(chosen)}.")


def _password(name: str, given: dict[str, str | None]) -> str:
    from ottla.client.profiles import ProfileError

    source = secret_source("password", given)
    if source is None:
        text: str = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
        return text
    try:
        return source.read()
    except ProfileError as error:
        raise click.ClickException(str(error)) from None


@user.command(name="list")
@click.argument("names", nargs=-1)
@json_option
@cluster_options
def list_users(names: tuple[str, ...], as_json: bool, bootstrap_server: str, properties: str | None) -> None:
    """List users with SCRAM passwords, all or those named.

    \b
    Examples:
      ottla user list
      ottla user list anna --json
    """
    found = with_admin(bootstrap_server, properties, lambda admin: admin.users.describe(names or None))
    rows = [(credential.user, credential.mechanism, credential.iterations) for credential in found]
    if rows or as_json:
        show(("user", "mechanism", "iterations"), rows, as_json=as_json)
    else:
        click.echo("No user has a SCRAM password; `ottla user add` adds one.")


@user.command()
@click.argument("name")
@_mechanism_option("Only the password of this mechanism; all by default. Repeatable.")
@cluster_options
def remove(
    name: str, mechanisms: tuple[ScramMechanism, ...], bootstrap_server: str, properties: str | None
) -> None:
    """Remove the passwords of a user. Open connections of the user stay; its ACLs stay too.

    \b
    Examples:
      ottla user remove anna
      ottla user remove anna --mechanism SCRAM-SHA-256
    """

    async def use(admin: Admin) -> list[ScramCredential]:
        there = await admin.users.describe([name])
        chosen = [found for found in there if not mechanisms or found.mechanism in mechanisms]
        if not chosen:
            raise click.ClickException(f"user {name} has no password for {' or '.join(mechanisms)}")
        await admin.users.delete(name, [_mechanism(found.mechanism) for found in chosen])
        return chosen

    removed = with_admin(bootstrap_server, properties, use)
    click.echo(f"Removed the password of {name} for {' and '.join(found.mechanism for found in removed)}.")


def _mechanism(name: str) -> ScramMechanism:
    return "SCRAM-SHA-256" if name == "SCRAM-SHA-256" else "SCRAM-SHA-512"
