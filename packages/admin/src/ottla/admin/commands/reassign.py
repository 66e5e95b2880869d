"""`ottla reassign`: move partitions to other brokers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from ottla.admin.commands import with_admin
from ottla.client.commands import cluster_options, json_option, show

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ottla.admin import Admin, Reassignment
    from ottla.admin.reassigning import PartitionPlan, PlanState
    from ottla.protocol.topics import TopicPartition

T = TypeVar("T")

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def reassign() -> None:
    """Move partitions to other brokers: generate, execute, verify, cancel, list.

    The files are those of kafka-reassign-partitions.
    """


@reassign.command(
    epilog="""\b
Examples:
  ottla reassign generate --topic orders --brokers 1,2,3,4 > move.json
  ottla reassign generate --brokers 2,3,4 --by size --rollback-file back.json > move.json
"""
)
@click.option("--topic", "topics", multiple=True, help="A topic to move. Default: all topics. Repeatable.")
@click.option(
    "--topics-to-move-json-file",
    "topics_file",
    type=_FILE,
    help="A file with the topics, as Kafka's tool has it.",
)
@click.option(
    "--brokers", "--broker-list", "brokers", metavar="ID,ID,...", help="Where to. Default: all brokers."
)
@click.option(
    "--by", type=click.Choice(["count", "size"]), default="count", show_default=True,
    help="What to spread evenly: the number of replicas, or their bytes.",
)  # fmt: skip
@click.option(
    "--replication-factor", type=click.IntRange(1), help="Replicas of each partition. Default: as now."
)
@click.option(
    "--ignore-racks", is_flag=True, help="Do not keep the replicas of a partition in different racks."
)
@click.option(
    "--rollback-file", type=click.Path(dir_okay=False, path_type=Path), help="Write the present state here."
)
@cluster_options
def generate(
    topics: tuple[str, ...],
    topics_file: Path | None,
    brokers: str | None,
    by: str,
    replication_factor: int | None,
    ignore_racks: bool,
    rollback_file: Path | None,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Print a plan that spreads partitions evenly over brokers.

    Preferred leaders are spread too, with few moves.
    """
    from ottla.admin.reassigning import decode_topics, encode_plans

    named = list(topics) + (_read(topics_file, decode_topics) if topics_file else [])
    ids = _ids(brokers) if brokers is not None else None

    async def use(admin: Admin) -> tuple[list[PartitionPlan], list[PartitionPlan]]:
        from ottla.admin.reassigning import current_plans

        present = await current_plans(admin, named or None)
        current = {plan.partition: plan.replicas for plan in present}
        racks = await _racks(admin, ids, ignore_racks=ignore_racks)
        weights = await _sizes(admin) if by == "size" else None
        return present, _balanced(current, racks, weights, replication_factor)

    present, proposed = with_admin(bootstrap_server, properties, use)
    if rollback_file is not None:
        rollback_file.write_text(encode_plans(present) + "\n")
    click.echo(encode_plans(proposed))
    before = {plan.partition: plan.replicas for plan in present}
    moved = sum(set(plan.replicas) != set(before[plan.partition]) for plan in proposed)
    click.echo(f"{moved} of {len(proposed)} partitions would move.", err=True)


def _balanced(
    current: Mapping[TopicPartition, Sequence[int]],
    racks: Mapping[int, str | None],
    weights: Mapping[TopicPartition, int] | None,
    replication_factor: int | None,
) -> list[PartitionPlan]:
    from ottla.admin.balancing import balanced
    from ottla.admin.reassigning import PartitionPlan

    found = balanced(current, racks, weights=weights, replication_factor=replication_factor)
    return [PartitionPlan(partition, replicas) for partition, replicas in found.items()]


async def _racks(admin: Admin, ids: list[int] | None, *, ignore_racks: bool) -> dict[int, str | None]:
    from ottla.client.cluster import not_alive

    known = {broker.id: broker.rack for broker in (await admin.brokers.describe()).brokers}
    if unknown := set(ids or ()) - known.keys():
        raise ValueError(not_alive(min(unknown), known))
    return {broker: None if ignore_racks else known[broker] for broker in (ids or sorted(known))}


async def _sizes(admin: Admin) -> dict[TopicPartition, int]:
    """Return the size of the largest replica of each partition."""
    sizes: dict[TopicPartition, int] = {}
    for broker in (await admin.brokers.describe()).brokers:
        for log_dir in await admin.brokers.log_dirs(broker.id):
            for replica in log_dir.replicas:
                sizes[replica.partition] = max(sizes.get(replica.partition, 0), replica.size_bytes)
    return sizes


def _ids(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise click.UsageError(f"--brokers {text} must be ids like 1,2,3")
    return sorted({int(part) for part in parts})


@reassign.command(
    epilog="""\b
Examples:
  ottla reassign execute move.json --rollback-file back.json
  ottla reassign execute move.json --throttle 50000000
"""
)
@click.argument("file", type=_FILE)
@click.option("--throttle", type=click.IntRange(1), help="Bytes per second and broker for the moves.")
@click.option(
    "--replica-alter-log-dirs-throttle", "log_dir_throttle", type=click.IntRange(1),
    help="Bytes per second and broker for moves between log directories.",
)  # fmt: skip
@click.option("--additional", is_flag=True, help="Also while other partitions are being moved.")
@click.option(
    "--rollback-file", type=click.Path(dir_okay=False, path_type=Path), help="Write the present state here."
)
@cluster_options
def execute(
    file: Path,
    throttle: int | None,
    log_dir_throttle: int | None,
    additional: bool,
    rollback_file: Path | None,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Begin the moves of a plan. `verify` shows their progress, and removes the throttle at the end."""
    from ottla.admin.reassigning import decode_plans, encode_plans
    from ottla.admin.reassigning import execute as begin

    plans = _read(file, decode_plans)

    async def use(admin: Admin) -> list[PartitionPlan]:
        return await begin(
            admin, plans, throttle=throttle, log_dir_throttle=log_dir_throttle, additional=additional
        )

    before = with_admin(bootstrap_server, properties, use)
    if rollback_file is not None:
        rollback_file.write_text(encode_plans(before) + "\n")
    else:
        click.echo(f"The replicas from before, to undo it: {encode_plans(before)}")
    click.echo(
        f"Started to move {_partitions(len(plans))}; `ottla reassign verify {file}` tells how far it is."
    )


@reassign.command(epilog="\b\nExample:\n  until ottla reassign verify move.json; do sleep 5; done")
@click.argument("file", type=_FILE)
@click.option("--preserve-throttles", is_flag=True, help="Keep the throttles when all is complete.")
@json_option
@cluster_options
def verify(
    file: Path, preserve_throttles: bool, as_json: bool, bootstrap_server: str, properties: str | None
) -> None:
    """Show how far the moves of a plan are.

    The exit status is 1 until all are complete.

    Once nothing moves any more, the throttles of the plan's topics and of all brokers are removed.
    """
    from ottla.admin.reassigning import decode_plans
    from ottla.admin.reassigning import verify as check

    plans = _read(file, decode_plans)

    async def use(admin: Admin) -> tuple[list[PlanState], list[str]]:
        return await check(admin, plans, preserve_throttles=preserve_throttles)

    states, unthrottled = with_admin(bootstrap_server, properties, use)
    columns = ("topic", "partition", "state", "replicas", "adding", "removing", "moving dirs on")
    rows = [
        (*state.plan.partition, state.state, state.replicas, state.adding, state.removing, state.moving_dirs)
        for state in states
    ]
    show(columns, rows, as_json=as_json)
    if unthrottled and not as_json:
        click.echo(f"Removed the throttles of {', '.join(unthrottled)}.")
    if any(state.state != "complete" for state in states):
        raise click.exceptions.Exit(1)


@reassign.command(epilog="\b\nExamples:\n  ottla reassign cancel move.json\n  ottla reassign cancel --all")
@click.argument("file", type=_FILE, required=False)
@click.option("--all", "everything", is_flag=True, help="Cancel all moves of the cluster.")
@click.option("--preserve-throttles", is_flag=True, help="Keep the throttles.")
@cluster_options
def cancel(
    file: Path | None,
    everything: bool,
    preserve_throttles: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Cancel moves: partitions keep the replicas they had."""
    from ottla.admin.reassigning import cancel as revert
    from ottla.admin.reassigning import decode_plans

    if (file is None) != everything:
        raise click.UsageError("give a FILE or --all")
    plans = _read(file, decode_plans) if file is not None else None
    partitions = None if plans is None else [plan.partition for plan in plans]

    async def use(admin: Admin) -> tuple[list[TopicPartition], list[str]]:
        return await revert(admin, partitions, preserve_throttles=preserve_throttles)

    cancelled, unthrottled = with_admin(bootstrap_server, properties, use)
    click.echo(f"Cancelled the moves of {_partitions(len(cancelled))}.")
    if unthrottled:
        click.echo(f"Removed the throttles of {', '.join(unthrottled)}.")


@reassign.command(name="list")
@json_option
@cluster_options
def list_reassignments(as_json: bool, bootstrap_server: str, properties: str | None) -> None:
    """List the partitions that are being moved.

    \b
    Examples:
      ottla reassign list
      ottla reassign list --json
    """

    async def use(admin: Admin) -> list[Reassignment]:
        return await admin.partitions.reassignments()

    moving = with_admin(bootstrap_server, properties, use)
    rows = [(*move.partition, move.replicas, move.adding, move.removing) for move in moving]
    show(("topic", "partition", "replicas", "adding", "removing"), rows, as_json=as_json)


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"


def _read(path: Path, decode: Callable[[str], T]) -> T:
    """Read a file of Kafka's tools; an error in it becomes one line."""
    try:
        return decode(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise click.UsageError(f"{path}: {error}") from None
