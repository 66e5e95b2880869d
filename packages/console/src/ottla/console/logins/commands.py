"""`ottla console user` and `ottla console token`: the people and programs of the file of logins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ottla.client.commands import json_option, secret_options, secret_source, show

if TYPE_CHECKING:
    from ottla.console.logins.access import Grant
    from ottla.console.logins.files import LoginsDraft

LEAST_PASSWORD: Final = 8
F = TypeVar("F", bound=Callable[..., Any])


def _grant_options(command: F) -> F:
    """Add the options of a role and of the names that it is over."""
    for name, of in (("group", "groups"), ("topic", "topics"), ("cluster", "clusters")):
        command = click.option(
            f"--{name}", of, metavar="PATTERN", multiple=True, help=f"Only these {of}; again for more."
        )(command)
    roles = click.Choice(["viewer", "operator", "administrator"])
    return click.option("--role", type=roles, required=True, help="The role.")(command)


_logins_option = click.option(
    "--logins", metavar="FILE", type=click.Path(dir_okay=False),
    help="The file of users and roles, ~/.config/ottla/console.toml by default.",
)  # fmt: skip


@click.group()
def user() -> None:
    """Add and remove people that log in to the console."""


@user.command()
@click.argument("name")
@_grant_options
@secret_options("password", "password")
@_logins_option
def add(
    name: str, role: str, clusters: tuple[str, ...], topics: tuple[str, ...], groups: tuple[str, ...],
    logins: str | None, **password: str | None,
) -> None:  # fmt: skip
    """Add a person with a role. Asks for the password if no option says where it is.

    The file, which only you may read, gets an argon2 hash of it. A console that runs reads the file again.

    \b
    Examples:
      ottla console user add anna --role administrator
      ottla console user add bob --role operator --cluster staging --topic "orders*" --group "orders*"
    """
    from ottla.console.logins.authenticator import hashed
    from ottla.console.logins.files import User, with_user

    _check_name(name)
    with _editing(logins) as file:
        if name in file.logins.users:
            raise click.UsageError(f"{file.path} has a user {name!r}: `ottla console user password {name}`")
        grant = _grant(role, clusters, topics, groups)
        added = User(name, hashed(_password(name, password)), (grant,))
        file.text = with_user(file.text, added)
    click.echo(f"Added {name} to {file.path}.")


@user.command()
@click.argument("name")
@secret_options("new password", "password")
@_logins_option
def password(name: str, logins: str | None, **given: str | None) -> None:
    """Change a person's password, which ends their sessions.

    \b
    Examples:
      ottla console user password anna
    """
    from ottla.console.logins.authenticator import hashed

    with _editing(logins) as file:
        if name not in file.logins.users:
            raise click.UsageError(f"{file.path} has no user {name!r}")
        file.text = file.text.replace(file.logins.users[name].password, hashed(_password(name, given)))
    click.echo(f"Changed the password of {name} in {file.path}.")


@user.command()
@click.argument("name")
@_logins_option
def remove(name: str, logins: str | None) -> None:
    """Remove a person, which ends their sessions.

    \b
    Examples:
      ottla console user remove anna
    """
    from ottla.console.logins.files import without

    with _editing(logins) as file:
        if name not in file.logins.users:
            raise click.UsageError(f"{file.path} has no user {name!r}")
        file.text = without(file.text, "user", name, file.path)
    click.echo(f"Removed {name} from {file.path}.")


@user.command(name="list")
@_logins_option
@json_option
def list_users(logins: str | None, as_json: bool) -> None:
    """List people and tokens with their roles.

    \b
    Examples:
      ottla console user list
    """
    with _editing(logins) as file:
        found = file.logins
    rows = [
        (kind, entry.name, grant.role.name.lower(), *_scope(grant))
        for kind, entries in (("user", found.users.values()), ("token", found.tokens))
        for entry in entries
        for grant in entry.grants
    ]
    show(("kind", "name", "role", "clusters", "topics", "groups"), rows, as_json=as_json)


@click.group()
def token() -> None:
    """Add and remove tokens of programs, such as Prometheus."""


@token.command(name="add")
@click.argument("name")
@_grant_options
@_logins_option
def add_token(
    name: str, role: str, clusters: tuple[str, ...], topics: tuple[str, ...], groups: tuple[str, ...],
    logins: str | None,
) -> None:  # fmt: skip
    """Add a token with a role, and print it once.

    The file gets a hash of it.

    \b
    Examples:
      ottla console token add prometheus --role viewer
    """
    import hashlib

    from ottla.client.environment import nonce
    from ottla.console.logins.files import Token, with_token

    _check_name(name)
    with _editing(logins) as file:
        if any(known.name == name for known in file.logins.tokens):
            raise click.UsageError(f"{file.path} has a token {name!r}: `ottla console token remove {name}`")
        secret = nonce()
        sha256 = hashlib.sha256(secret.encode()).hexdigest()
        added = Token(name, sha256, (_grant(role, clusters, topics, groups),))
        file.text = with_token(file.text, added)
    click.echo(secret)


@token.command(name="remove")
@click.argument("name")
@_logins_option
def remove_token(name: str, logins: str | None) -> None:
    """Remove a token.

    \b
    Examples:
      ottla console token remove prometheus
    """
    from ottla.console.logins.files import without

    with _editing(logins) as file:
        if all(known.name != name for known in file.logins.tokens):
            raise click.UsageError(f"{file.path} has no token {name!r}")
        file.text = without(file.text, "token", name, file.path)
    click.echo(f"Removed {name} from {file.path}.")


@contextmanager
def _editing(logins: str | None) -> Iterator[LoginsDraft]:
    """Read the file of logins, and write it again if its text was changed; errors are one line."""
    from ottla.console.logins.files import LoginsDraft, LoginsError, default_path

    try:
        draft = LoginsDraft(Path(logins) if logins else default_path())
        yield draft
        draft.write()
    except (LoginsError, OSError) as error:
        raise click.ClickException(str(error)) from None


def _grant(role: str, clusters: tuple[str, ...], topics: tuple[str, ...], groups: tuple[str, ...]) -> Grant:
    from ottla.console.logins.access import ALL, ROLES, Grant

    return Grant(ROLES[role], clusters or ALL, topics or ALL, groups or (() if topics else ALL))


def _check_name(name: str) -> None:
    from ottla.console.logins.files import NAME

    if not NAME.fullmatch(name):
        raise click.UsageError(f"{name!r} cannot be a name: it has no spaces, quotes or control characters")


def _scope(grant: Grant) -> Iterator[str]:
    return map(" ".join, (grant.clusters, grant.topics, grant.groups))


def _password(name: str, given: dict[str, str | None]) -> str:
    from ottla.console.logins.authenticator import MOST_PASSWORD

    source = secret_source("password", given)
    if source is None:
        text: str = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        text = source.read()
    if not LEAST_PASSWORD <= len(text) <= MOST_PASSWORD:
        raise click.UsageError(f"a password has from {LEAST_PASSWORD} to {MOST_PASSWORD} letters")
    return text
