"""`ottla feature`: the feature levels of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.admin.commands import with_admin
from ottla.client.commands import cluster_options, json_option, show

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.admin import Admin, Change
    from ottla.admin.features import FeatureLevel

COLUMNS = ("feature", "level", "supported", "epoch", "off because of brokers")


@click.group()
def feature() -> None:
    """Show and change which of Kafka's newer features are on in a cluster.

    group.version has consumer groups with assignments by the broker (KIP-848), share.version share groups
    (KIP-932), streams.version streams groups (KIP-1071), transaction.version 2 transactions whose epoch rises
    each time (KIP-890). All are on in a new cluster. They are off in one that was made by an earlier release
    until they are upgraded, and while a broker that does not support them is a member: one of Apache Kafka
    with ZooKeeper, for example.
    """


@feature.command()
@json_option
@cluster_options
def describe(as_json: bool, bootstrap_server: str, properties: str | None) -> None:
    """Show the features of the cluster, their levels, and which brokers keep them off.

    \b
    Examples:
      ottla feature describe
      ottla feature describe --json
    """
    found = with_admin(bootstrap_server, properties, lambda admin: admin.features.describe())
    if not found.features and not as_json:
        click.echo("No broker of the cluster has a feature whose level can change.")
        return
    rows = [
        (
            level.name, level.level, f"{level.least}-{level.most}", found.epoch,
            ", ".join(map(str, level.lacking)),
        )
        for level in found.features
    ]  # fmt: skip
    show(COLUMNS, rows, as_json=as_json)


def _levels(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, int]:
    levels: dict[str, int] = {}
    for text in given:
        name, _sign, level = text.partition("=")
        if not name or not (level.isascii() and level.isdigit()):
            raise click.BadParameter(f"{text!r} must be FEATURE=LEVEL")
        levels[name] = int(level)
    return levels


levels_argument = click.argument("levels", nargs=-1, callback=_levels, metavar="[FEATURE=LEVEL]...")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only check whether the levels can be had.")


@feature.command()
@levels_argument
@click.option("--all", "everything", is_flag=True, help="Every feature, to the newest level of all brokers.")
@dry_run_option
@cluster_options
def upgrade(
    levels: Mapping[str, int],
    everything: bool,
    dry_run: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Raise the levels of features: all of those named, or none.

    \b
    Examples:
      ottla feature upgrade --all
      ottla feature upgrade group.version=1 transaction.version=2
      ottla feature upgrade share.version=1 --dry-run
    """
    _check_either(levels, everything)

    async def use(admin: Admin) -> Mapping[str, int]:
        from ottla.admin import Change

        found = await _above(admin) if everything else levels
        return await _change(admin, found, Change.UPGRADE, dry_run)

    _report(with_admin(bootstrap_server, properties, use), dry_run)


@feature.command()
@levels_argument
@click.option("--all", "everything", is_flag=True, help="Every feature, to its lowest level.")
@click.option(
    "--unsafe", is_flag=True,
    help="Also while groups have members or transactions are open: the members get errors, the transactions "
    "end as they began.",
)  # fmt: skip
@dry_run_option
@cluster_options
def downgrade(
    levels: Mapping[str, int],
    everything: bool,
    unsafe: bool,
    dry_run: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Lower the levels of features, 0 for off: all of those named, or none.

    The command is refused, and says what has to end first, while groups of the feature's kind have members,
    or transactions are open. Do this before a broker of Apache Kafka joins the cluster to stay.

    \b
    Examples:
      ottla feature downgrade --all
      ottla feature downgrade group.version=0
      ottla feature downgrade transaction.version=0 --unsafe
    """
    _check_either(levels, everything)

    async def use(admin: Admin) -> Mapping[str, int]:
        from ottla.admin import Change

        found = levels
        if everything:
            described = await admin.features.describe()
            found = {level.name: level.least for level in described.features}
        change = Change.UNSAFE_DOWNGRADE if unsafe else Change.SAFE_DOWNGRADE
        return await _change(admin, found, change, dry_run)

    _report(with_admin(bootstrap_server, properties, use), dry_run)


def _check_either(levels: Mapping[str, int], everything: bool) -> None:
    if bool(levels) == everything:
        raise click.UsageError("give FEATURE=LEVEL or --all")


async def _above(admin: Admin) -> dict[str, int]:
    """Return the newest levels of features that are below them."""

    def is_below(level: FeatureLevel) -> bool:
        return level.level < level.most

    described = await admin.features.describe()
    return {level.name: level.most for level in described.features if is_below(level)}


async def _change(
    admin: Admin, levels: Mapping[str, int], change: Change, dry_run: bool
) -> Mapping[str, int]:
    if levels:
        await admin.features.update(levels, change, validate_only=dry_run)
    return levels


def _report(levels: Mapping[str, int], dry_run: bool) -> None:
    for name, level in sorted(levels.items()):
        click.echo(f"{name} can be {level}." if dry_run else f"{name} is {level}.")
    if not levels:
        click.echo("Every feature has this level already.")
