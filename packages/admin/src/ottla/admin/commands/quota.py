"""`ottla quota`: limits of users, clients and addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from ottla.admin.commands import with_admin
from ottla.client.commands import cluster_options, json_option, show, show_json

if TYPE_CHECKING:
    from ottla.admin import Admin, Quota

_KINDS: Final = ("user", "client-id", "ip")
_DEFAULT: Final = "<default>"
_LIMITS: Final = (
    ("producer_byte_rate", "Bytes per second that producers send to each broker."),
    ("consumer_byte_rate", "Bytes per second that consumers fetch from each broker."),
    ("request_percentage", "Time of requests: 100 is one busy thread of each broker."),
    ("controller_mutation_rate", "Partitions per second that are created or deleted."),
    ("connection_creation_rate", "New connections per second to each broker, for addresses."),
)


def _entity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for kind, noun in (("ip", "address"), ("client-id", "client id"), ("user", "user")):
        default = click.option(
            f"--default-{kind}", is_flag=True, help=f"Each {noun} that has no quota of its own."
        )
        command = click.option(
            f"--{kind}", metavar="NAME", help=f"An {noun}." if kind == "ip" else f"A {noun}."
        )(default(command))
    return command


def _entity(given: dict[str, Any]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for kind in _KINDS:
        name, is_default = given[kind.replace("-", "_")], given[f"default_{kind.replace('-', '_')}"]
        if name is not None and is_default:
            raise click.UsageError(f"give --{kind} or --default-{kind}, not both")
        if name is not None or is_default:
            found[kind] = name
    if "ip" in found and len(found) > 1:
        raise click.UsageError("quotas of addresses stand alone: give --ip without --user and --client-id")
    return found


def _needed_entity(given: dict[str, Any]) -> dict[str, str | None]:
    if not (found := _entity(given)):
        raise click.UsageError("give --user, --client-id, both, or --ip; or --default-user and so on")
    return found


@click.group()
def quota() -> None:
    """Limit users, clients and addresses: bytes, request time, connections."""


def _limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for key, text in reversed(_LIMITS):
        command = click.option(f"--{key.replace('_', '-')}", type=float, metavar="NUMBER", help=text)(command)
    return command


@quota.command(name="set")
@_entity_options
@_limit_options
@cluster_options
def set_quota(bootstrap_server: str, properties: str | None, **given: Any) -> None:
    """Set limits of a user, a client id or an address.

    A user and a client id together name that client id of that user. Other limits stay.

    \b
    Examples:
      ottla quota set --user anna --producer-byte-rate 1048576
      ottla quota set --user anna --client-id loader --request-percentage 50
      ottla quota set --default-ip --connection-creation-rate 20
    """
    entity = _needed_entity(given)
    limits: dict[str, float | None] = {key: given[key] for key, _ in _LIMITS if given[key] is not None}
    if not limits:
        raise click.UsageError(f"give a limit: --{', --'.join(key.replace('_', '-') for key, _ in _LIMITS)}")
    for key in limits:
        if (key == "connection_creation_rate") != ("ip" in entity):
            option = f"--{key.replace('_', '-')}"
            belongs = (
                "is a limit of --ip" if key == "connection_creation_rate" else "is no limit of addresses"
            )
            raise click.UsageError(f"{option} {belongs}")
    with_admin(bootstrap_server, properties, lambda admin: admin.quotas.alter(entity, limits))
    click.echo(f"Set {', '.join(limits)} of {_words(entity)}.")


@quota.command(name="list")
@_entity_options
@json_option
@cluster_options
def list_quotas(as_json: bool, bootstrap_server: str, properties: str | None, **given: Any) -> None:
    """List quotas: all, or those of a user, a client id or an address.

    \b
    Examples:
      ottla quota list
      ottla quota list --user anna --json
    """
    entity = _entity(given)
    found = with_admin(bootstrap_server, properties, lambda admin: admin.quotas.describe(entity))
    found.sort(key=lambda quota: [quota.entity.get(kind, "") or "" for kind in _KINDS])
    if as_json:
        show_json([{"entity": dict(quota.entity), "limits": dict(quota.limits)} for quota in found])
    elif not found:
        click.echo("There is no such quota.")
    else:
        _show(found)


def _show(found: list[Quota]) -> None:
    kinds = [kind for kind in _KINDS if any(kind in quota.entity for quota in found)]
    keys = sorted({key for quota in found for key in quota.limits})
    rows = [
        (
            *(_name(quota, kind) for kind in kinds),
            *(_number(quota.limits[key]) if key in quota.limits else None for key in keys),
        )
        for quota in found
    ]
    show([kind.replace("-", " ") for kind in kinds] + keys, rows, as_json=False)


def _name(quota: Quota, kind: str) -> str | None:
    return (quota.entity[kind] or _DEFAULT) if kind in quota.entity else None


def _number(value: float) -> object:
    return int(value) if value.is_integer() else value


@quota.command()
@_entity_options
@click.option(
    "--limit", "keys", multiple=True, type=click.Choice([key for key, _ in _LIMITS]),
    help="Only this limit; all by default. Repeatable.",
)  # fmt: skip
@cluster_options
def remove(keys: tuple[str, ...], bootstrap_server: str, properties: str | None, **given: Any) -> None:
    """Remove limits of a user, a client id or an address.

    A user and a client id together name that client id of that user.

    \b
    Examples:
      ottla quota remove --user anna
      ottla quota remove --default-client-id --limit consumer_byte_rate
    """
    entity = _needed_entity(given)

    async def use(admin: Admin) -> list[str]:
        there = [
            found for found in await admin.quotas.describe(entity, strict=True) if found.entity == entity
        ]
        has = sorted(key for found in there for key in found.limits)
        chosen = [key for key in has if not keys or key in keys]
        if not chosen:
            raise click.ClickException(f"{_words(entity)} has no such limit; `ottla quota list` lists quotas")
        await admin.quotas.alter(entity, dict.fromkeys(chosen))
        return chosen

    click.echo(f"Removed {', '.join(with_admin(bootstrap_server, properties, use))} of {_words(entity)}.")


def _words(entity: dict[str, str | None]) -> str:
    return ", ".join(f"{kind} {_DEFAULT if name is None else name}" for kind, name in entity.items())
