"""`ottla acl`: access rules, and which of them admits or refuses a principal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from ottla.admin.commands import with_admin
from ottla.client.commands import allowing, cluster_options, json_option, show, show_json

if TYPE_CHECKING:
    from ottla.admin import Acl, AclFilter, Admin
    from ottla.protocol.acls import Operation, ResourceType

_OPERATIONS: Final = (
    "ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS",
    "ALTER_CONFIGS", "IDEMPOTENT_WRITE", "CREATE_TOKENS", "DESCRIBE_TOKENS", "TWO_PHASE_COMMIT",
)  # fmt: skip
_COLUMNS: Final = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
_CLUSTER_NAME: Final = "kafka-cluster"

_operation: Final = click.Choice(_OPERATIONS, case_sensitive=False)
_NAMES_OF_OPERATIONS: Final = ", ".join(_OPERATIONS[1:])


def _principals(_: click.Context, __: click.Parameter, given: Any) -> Any:
    for principal in [given] if isinstance(given, str) else given or ():
        kind, _colon, name = principal.partition(":")
        if not kind or not name:
            raise click.BadParameter(f"{principal!r} must be User:NAME, or User:* for everyone")
    return given


def _resource_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--user-resource", "users", multiple=True, metavar="USER", help="Tokens of this user."),
        click.option("--delegation-token", "tokens", multiple=True, metavar="ID", help="A delegation token."),
        click.option("--transactional-id", "txns", multiple=True, metavar="ID", help="A transactional id."),
        click.option("--cluster", is_flag=True, help="The cluster itself."),
        click.option("--group", "groups", multiple=True, metavar="NAME", help="A group; '*' is every group."),
        click.option("--topic", "topics", multiple=True, metavar="NAME", help="A topic; '*' is every topic."),
    ):
        command = option(command)
    return command


def _resources(given: dict[str, Any]) -> list[tuple[ResourceType, str]]:
    from ottla.protocol.acls import ResourceType

    found = [
        (kind, name)
        for key, kind in (
            ("topics", ResourceType.TOPIC),
            ("groups", ResourceType.GROUP),
            ("txns", ResourceType.TRANSACTIONAL_ID),
            ("tokens", ResourceType.DELEGATION_TOKEN),
            ("users", ResourceType.USER),
        )
        for name in given[key]
    ]
    return found + ([(ResourceType.CLUSTER, _CLUSTER_NAME)] if given["cluster"] else [])


@click.group()
def acl() -> None:
    """Add, list and remove access rules; check what they decide."""


@acl.command()
@click.option(
    "--principal", "principals", multiple=True, required=True, callback=_principals, metavar="User:NAME",
    help="A user; User:* is everyone. Repeatable.",
)  # fmt: skip
@click.option(
    "--operation", "-o", "operations", multiple=True, type=_operation, metavar="NAME",
    help=f"{_NAMES_OF_OPERATIONS}, or ALL. Repeatable.",
)  # fmt: skip
@click.option("--producer", is_flag=True, help="WRITE and CREATE on the topics, WRITE on transactional ids.")
@click.option("--consumer", is_flag=True, help="READ on the topics and the groups.")
@_resource_options
@click.option("--prefixed", is_flag=True, help="The names are the beginnings of names.")
@click.option("--host", "hosts", multiple=True, metavar="IP", help="Only from this address. Repeatable.")
@click.option("--deny", is_flag=True, help="Deny, which wins over all rules that allow.")
@json_option
@cluster_options
def add(
    principals: tuple[str, ...],
    operations: tuple[str, ...],
    prefixed: bool,
    hosts: tuple[str, ...],
    deny: bool,
    as_json: bool,
    bootstrap_server: str,
    properties: str | None,
    **resources: Any,
) -> None:
    """Add access rules.

    One is added for each principal, resource, operation and host.

    READ, WRITE, DELETE and ALTER allow DESCRIBE too, and ALTER_CONFIGS allows DESCRIBE_CONFIGS. Options that
    name resources may be repeated.

    \b
    Examples:
      ottla acl add --principal User:anna --producer --topic orders
      ottla acl add --principal User:josef --consumer --topic orders --group billing
      ottla acl add --principal User:ops -o DESCRIBE -o ALTER --topic shop- --prefixed
      ottla acl add --principal 'User:*' -o READ --topic secrets --deny
    """
    rules = _rules(principals, hosts or ("*",), resources, operations, prefixed=prefixed, deny=deny)

    async def use(admin: Admin) -> None:
        await admin.acls.create(rules)

    with_admin(bootstrap_server, properties, use)
    _show(rules, as_json=as_json)


def _rules(
    principals: tuple[str, ...],
    hosts: tuple[str, ...],
    resources: dict[str, Any],
    operations: tuple[str, ...],
    *,
    prefixed: bool,
    deny: bool,
) -> list[Acl]:
    from ottla.protocol.acls import Acl, PatternType, PermissionType

    permission = PermissionType.DENY if deny else PermissionType.ALLOW
    return sorted(
        {
            Acl(
                kind,
                name,
                PatternType.PREFIXED if prefixed and name != _CLUSTER_NAME else PatternType.LITERAL,
                principal,
                host,
                operation,
                permission,
            )
            for operation, (kind, name) in _pairs(resources, operations, prefixed=prefixed)
            for principal in principals
            for host in hosts
        }
    )


def _pairs(
    given: dict[str, Any], operations: tuple[str, ...], *, prefixed: bool
) -> list[tuple[Operation, tuple[ResourceType, str]]]:
    from ottla.protocol.acls import Operation

    wanted = _resources(given)
    if not wanted:
        raise click.UsageError("give a resource: --topic NAME, --group NAME, --cluster, ...")
    if prefixed and any(name == "*" for _, name in wanted):
        raise click.UsageError(
            "'*' stands for all names without --prefixed, and with it for names with a star"
        )
    pairs = [(Operation[name], resource) for name in operations for resource in wanted]
    pairs += _pairs_of_client(wanted, producer=given["producer"], consumer=given["consumer"])
    if not pairs:
        raise click.UsageError("give --operation NAME, --producer or --consumer")
    _check_operations((operation, kind) for operation, (kind, _) in pairs)
    return pairs


def _pairs_of_client(
    resources: list[tuple[ResourceType, str]], *, producer: bool, consumer: bool
) -> Iterator[tuple[Operation, tuple[ResourceType, str]]]:
    """Yield the operations that Kafka's clients need on the resources that concern them."""
    from ottla.protocol.acls import Operation, ResourceType

    topic, group, txn = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
    needs = {
        topic: ((Operation.WRITE, Operation.CREATE) if producer else ())
        + ((Operation.READ,) if consumer else ()),
        group: (Operation.READ,) if consumer else (),
        txn: (Operation.WRITE,) if producer else (),
    }
    for kind, name in resources:
        yield from ((operation, (kind, name)) for operation in needs.get(kind, ()))


def _check_operations(pairs: Iterable[tuple[Operation, ResourceType]]) -> None:
    from ottla.protocol.acls import OPERATIONS, Operation

    for operation, kind in pairs:
        if operation != Operation.ALL and operation not in OPERATIONS[kind]:
            known = ", ".join(found.name for found in OPERATIONS[kind])
            raise click.UsageError(f"{kind.name} has no operation {operation.name}; it has {known}, ALL")


_filter_options: Final = (
    click.option(
        "--affecting", is_flag=True, help="Also prefixed rules and those of `*` that match the names."
    ),
    click.option("--operation", "-o", type=_operation, metavar="NAME", help="Only rules of this operation."),
    click.option("--host", metavar="IP", help="Only rules of this address."),
    click.option("--principal", callback=_principals, metavar="User:NAME", help="Only rules of this user."),
)


def _filtering(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in _filter_options:
        command = option(command)
    return _resource_options(command)


def _filters(given: dict[str, Any]) -> list[AclFilter]:
    from ottla.admin import AclFilter
    from ottla.protocol.acls import Operation, PatternType

    operation = Operation.ANY if given["operation"] is None else Operation[given["operation"]]
    common: dict[str, Any] = {
        "principal": given["principal"],
        "host": given["host"],
        "operation": operation,
        "pattern_type": PatternType.MATCH if given["affecting"] else PatternType.ANY,
    }
    found = [AclFilter(resource_type=kind, resource_name=name, **common) for kind, name in _resources(given)]
    return found or [AclFilter(**common)]


@acl.command(name="list")
@_filtering
@json_option
@cluster_options
def list_acls(as_json: bool, bootstrap_server: str, properties: str | None, **given: Any) -> None:
    """List access rules.

    All are listed, or those about some resources, a user, a host or an operation.

    \b
    Examples:
      ottla acl list
      ottla acl list --principal User:anna
      ottla acl list --topic orders --affecting --json
    """
    filters = _filters(given)

    async def use(admin: Admin) -> list[Acl]:
        return sorted({rule for wanted in filters for rule in await admin.acls.describe(wanted)})

    rules = with_admin(bootstrap_server, properties, use)
    if rules or as_json:
        _show(rules, as_json=as_json)
    else:
        click.echo("There is no such rule.")


@acl.command()
@_filtering
@click.option("--all", "everything", is_flag=True, help="Remove all rules of the cluster.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@cluster_options
def remove(
    everything: bool,
    yes: bool,
    as_json: bool,
    bootstrap_server: str,
    properties: str | None,
    **given: Any,
) -> None:
    """Remove access rules. Shows them and asks first, unless --yes is given.

    \b
    Examples:
      ottla acl remove --principal User:anna
      ottla acl remove --topic orders --operation WRITE --yes
    """
    from ottla.admin import AclFilter

    filters = _filters(given)
    if everything == (filters != [AclFilter()]):
        raise click.UsageError("give options that choose rules, or --all")

    async def find(admin: Admin) -> list[Acl]:
        return sorted({rule for wanted in filters for rule in await admin.acls.describe(wanted)})

    found = with_admin(bootstrap_server, properties, find)
    if not found:
        raise click.ClickException("there is no such rule; `ottla acl list` lists those there are")
    if not yes:
        _show(found, as_json=False)
        click.confirm(
            f"Remove {'this rule' if len(found) == 1 else f'these {len(found)} rules'}?", abort=True
        )

    async def use(admin: Admin) -> list[Acl]:
        return await admin.acls.delete([AclFilter.of(rule) for rule in found])

    deleted = with_admin(bootstrap_server, properties, use)
    if yes:
        _show(deleted, as_json=as_json)
    else:
        click.echo(f"Removed {len(deleted)}.")


@acl.command()
@click.option("--principal", required=True, callback=_principals, metavar="User:NAME", help="The user.")
@click.option("--operation", "-o", required=True, type=_operation, metavar="NAME", help=_NAMES_OF_OPERATIONS)
@click.option("--host", metavar="IP", help="Its address; without it rules for single addresses do not count.")
@_resource_options
@json_option
@cluster_options
def check(
    principal: str,
    operation: str,
    host: str | None,
    as_json: bool,
    bootstrap_server: str,
    properties: str | None,
    **resources: Any,
) -> None:
    """Show whether a user may do something, and which rule says so. Exits with 1 if not.

    \b
    Examples:
      ottla acl check --principal User:anna -o WRITE --topic orders
      ottla acl check --principal User:josef -o READ --group billing --host 10.0.0.7
    """
    from ottla.admin.access_checks import check_access
    from ottla.protocol.acls import Operation

    wanted = _resources(resources)
    if len(wanted) != 1:
        raise click.UsageError("give one resource: --topic NAME, --group NAME, --cluster, ...")
    ((kind, name),) = wanted
    action = Operation[operation]
    if action == Operation.ALL:
        raise click.UsageError("ALL stands for operations in rules; check one of them")
    _check_operations([(action, kind)])

    async def use(admin: Admin) -> tuple[bool, str, Acl | None]:
        return await check_access(admin, principal, host, action, kind, name)

    allowed, reason, rule = with_admin(bootstrap_server, properties, use)
    if as_json:
        show_json({"allowed": allowed, "reason": reason, "rule": None if rule is None else _record(rule)})
    else:
        click.echo(f"{'Allowed' if allowed else 'Denied'}: {reason}")
        if not allowed and rule is None:
            click.echo(f"A rule allows it: {allowing(principal, operation.upper(), kind.name, name)}")
    if not allowed:
        raise click.exceptions.Exit(1)


def _row(rule: Acl) -> tuple[object, ...]:
    return (
        rule.resource_type.name, rule.resource_name, rule.pattern_type.name, rule.principal, rule.host,
        rule.operation.name, rule.permission_type.name,
    )  # fmt: skip


def _record(rule: Acl) -> dict[str, object]:
    return dict(zip(_COLUMNS, _row(rule), strict=True))


def _show(rules: Iterable[Acl], *, as_json: bool) -> None:
    show(_COLUMNS, [_row(rule) for rule in rules], as_json=as_json)
