"""`ottla feature`: the feature levels of a cluster."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import click

from ottla.admin.commands import with_admin
from ottla.client.commands import cluster_options, did_you_mean, json_option, one_line, show

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.admin import Admin, Change
    from ottla.admin.features import ClusterFeatures, FeatureLevel

NO_FEATURES: Final = "No broker of the cluster has a feature whose level can change."
COLUMNS = ("feature", "level", "supported", "epoch", "off because of brokers")


@click.group()
def feature() -> None:
    """Show and change which newer features are on in a cluster.

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
    """Show features, their levels, and which brokers keep them off.

    \b
    Examples:
      ottla feature describe
      ottla feature describe --json
    """
    found = with_admin(bootstrap_server, properties, lambda admin: admin.features.describe())
    if not found.features and not as_json:
        click.echo(NO_FEATURES)
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
            raise click.BadParameter(f"{text!r} must be FEATURE=LEVEL, as share.version=1")
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
    """Raise the levels of features.

    All of those named are changed, or none. A level can be had once every broker supports it.

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
    """Lower the levels of features, 0 for off.

    All of those named are changed, or none.

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
    """Change levels, unless those of the cluster forbid it already. Raises ClickException."""
    from ottla.protocol.errors import FeatureUpdateFailed, InvalidUpdateVersion

    if not levels:
        return levels
    if problem := problem_of(levels, await admin.features.describe(), change):
        raise click.ClickException(problem)
    try:
        await admin.features.update(levels, change, validate_only=dry_run)
    except (FeatureUpdateFailed, InvalidUpdateVersion) as error:
        raise click.ClickException(reason_of(one_line(error))) from None
    return levels


def problem_of(levels: Mapping[str, int], described: ClusterFeatures, change: Change) -> str | None:
    """Return why a cluster with these features refuses a change of levels, and what to write instead."""
    known = {feature.name: feature for feature in described.features}
    if not known:
        return NO_FEATURES
    problems = (_problem(name, level, known, change) for name, level in levels.items())
    return next(filter(None, problems), None)


def _problem(name: str, level: int, known: Mapping[str, FeatureLevel], change: Change) -> str | None:
    if (feature := known.get(name)) is None:
        whole = [other for other in known if other.startswith(f"{name}.")]
        near = f": did you mean {whole[0]!r}?" if len(whole) == 1 else did_you_mean(name, known)
        return f"unknown feature {name!r}{near or '.'} The cluster has {', '.join(known)}."
    is_upgrade = change.name == "UPGRADE"
    if level < feature.level and is_upgrade:
        return _use_other("downgrade", feature, level)
    if level > feature.level and not is_upgrade:
        return _use_other("upgrade", feature, level)
    return None


def _use_other(command: str, feature: FeatureLevel, level: int) -> str:
    side = "lower" if level < feature.level else "higher"
    return (
        f"{feature.name} is {feature.level}, and {level} is {side}: "
        f"use `ottla feature {command} {feature.name}={level}`."
    )


_FRAME: Final = re.compile(
    r"The update failed for all features since the following feature had an error: "
    r"(?:Invalid update version (?P<level>-?\d+) for feature (?P<name>\S+?)\. )?(?P<reason>.*)"
)
"""Kafka's sentence around the reason for which a level is refused."""
_RANGE: Final = re.compile(r"The controller only supports versions (?P<least>\d+)-(?P<most>\d+)\.")


def reason_of(text: str) -> str:
    """Return the reason out of a controller's answer, with the option of the command that it asks for."""
    found = _FRAME.fullmatch(text)
    if found is None:
        return text
    reason = found["reason"].replace("ask for an unsafe downgrade", "add --unsafe")
    if (supported := _RANGE.fullmatch(reason)) is not None:
        return f"{found['name']} can be {supported['least']} to {supported['most']}, not {found['level']}."
    return reason if found["name"] is None else f"{found['name']} cannot be {found['level']}: {reason}"


def _report(levels: Mapping[str, int], dry_run: bool) -> None:
    for name, level in sorted(levels.items()):
        click.echo(f"{name} can be {level}." if dry_run else f"{name} is {level}.")
    if not levels:
        click.echo("Every feature has this level already.")
