"""`ottla top`: a cluster in the terminal, with the rates of its topics and the lag of its groups."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from ottla.admin.commands import with_admin
from ottla.client.commands import cluster_options, printable, table_lines

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.admin.cluster_health import ClusterState

_TOP, _REST_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"
_SHOW_CURSOR, _HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"
GROUPS_AT_ONCE: Final = 16
_PLAIN: Final = (100, 1_000)
"""Columns and lines of an output that is no terminal."""


class Sample(NamedTuple):
    """The state of a cluster at a time: the ends of its topics, and the lag of its groups."""

    at_s: float
    state: ClusterState
    ends: Mapping[str, int]
    """The sum of the end offsets of each topic."""
    groups: Mapping[str, tuple[str, int | None, int]]
    """State, lag and count of read records of each group, as sums; None where no lag is known."""


@click.command()
@click.option("--every", metavar="TIME", default="2s", show_default=True, help="How often it is drawn.")
@click.option("--times", type=click.IntRange(1), help="Stop after so many times.")
@cluster_options
def top(every: str, times: int | None, bootstrap_server: str, properties: str | None) -> None:
    """Watch a cluster: brokers, problems, topics by records per second, groups by lag. Ctrl-C ends it.

    \b
    Examples:
      ottla top
      ottla top --every 5s --profile production
    """
    from ottla.client.times import duration_s

    try:
        every_s = duration_s(every)
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    async def use(admin: Admin) -> None:
        from asyncio import sleep

        before: Sample | None = None
        shown = 0
        while True:
            sample = await sampled(admin)
            size = shutil.get_terminal_size() if sys.stdout.isatty() else _PLAIN
            draw(screen(before, sample, *size))
            shown += 1
            if shown == times:
                return
            before = sample
            await sleep(every_s)

    with terminal_view() as draw:
        with_admin(bootstrap_server, properties, use)


@contextmanager
def terminal_view() -> Iterator[Callable[[Sequence[str]], None]]:
    """Return a function that draws lines over the ones before, as far as the terminal has room for them.

    Where the output is no terminal they are printed one after the other.
    """
    if not sys.stdout.isatty():
        yield lambda lines: click.echo("\n".join(lines))
        return

    def draw(lines: Sequence[str]) -> None:
        # Each line replaces one: a screen that is cleared first flickers.
        width, height = shutil.get_terminal_size()
        shown = "\n".join(f"{printable(line)[:width]}{_REST_OF_LINE}" for line in lines[: height - 1])
        click.echo(f"{_TOP}{shown}\n{_REST}", nl=False)

    click.echo(f"{_TOP}{_REST}{_HIDE_CURSOR}", nl=False)
    try:
        yield draw
    finally:
        click.echo(_SHOW_CURSOR, nl=False)


async def sampled(admin: Admin) -> Sample:
    """Return what a cluster has now."""
    from asyncio import get_running_loop

    from ottla.admin import LATEST

    state = await admin.cluster_state()
    led = [found.partition for found in state.partitions if found.leader not in (None, -1)]
    ends: dict[str, int] = {}
    for partition, end in (await admin.offsets.find_reachable(dict.fromkeys(led, LATEST))).items():
        ends[partition.topic] = ends.get(partition.topic, 0) + end
    return Sample(get_running_loop().time(), state, ends, await _groups(admin))


async def _groups(admin: Admin) -> dict[str, tuple[str, int | None, int]]:
    """Return state, lag and count of read records of all groups; a few groups are read at once."""
    from asyncio import TaskGroup

    from ottla.protocol.errors import GroupIdNotFound

    found: dict[str, tuple[str, int | None, int]] = {}
    waiting = iter(await admin.groups.list())

    async def read() -> None:
        for listing in waiting:
            try:
                progress = (await admin.group_progress(listing.name)).partitions
            except GroupIdNotFound:  # it ended since it was listed
                continue
            lags = [partition.lag for partition in progress if partition.lag is not None]
            lag = sum(lags) if lags or not progress else None
            found[listing.name] = listing.state, lag, sum(partition.read or 0 for partition in progress)

    try:
        async with TaskGroup() as tasks:
            for _ in range(GROUPS_AT_ONCE):
                tasks.create_task(read())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return found


def screen(before: Sample | None, now: Sample, width: int, height: int) -> list[str]:
    """Return the lines of the view, at most as many and as long as there is room for."""
    from ottla.admin.cluster_health import problems

    state, seconds = now.state, now.at_s - before.at_s if before else 0.0
    faults = problems(state)
    controller = "none" if state.controller is None else state.controller
    head = (
        f"cluster {state.cluster_id or '-'}   brokers {len(state.brokers)}   controller {controller}   "
        f"partitions {len(state.partitions)}   problems {len(faults)}"
    )
    topics = [
        (name, _rate(before.ends.get(name) if before else None, end, seconds), end)
        for name, end in now.ends.items()
    ]
    topics.sort(key=lambda row: (-(row[1] or 0), row[0]))
    groups = [
        (name, found[0], found[1], _rate(before.groups[name][2] if before and name in before.groups else None,
                                         found[2], seconds))
        for name, found in now.groups.items()
    ]  # fmt: skip
    # A lag that is not known may be any: it comes before those without one.
    groups.sort(key=lambda row: (-(0.5 if row[2] is None else row[2]), row[0]))
    room = max(2, (height - 6 - min(3, len(faults))) // 2)
    lines = [
        head,
        *(f"! {problem.text}" for problem in faults[:3]),
        "",
        *_part(("topic", "records/s", "records written"), topics, room),
        "",
        *_part(("group", "state", "lag", "read/s"), groups, room),
    ]
    return [printable(line)[:width] for line in lines[: height - 1]]


def _part(columns: Sequence[str], rows: Sequence[Sequence[object]], room: int) -> list[str]:
    lines = table_lines(columns, rows[: room - 1])
    return [*lines, f"and {len(rows) - room + 1} more"] if len(rows) >= room else lines


def _rate(before: int | None, now: int, seconds: float) -> int | None:
    return None if before is None or seconds <= 0 else max(0, round((now - before) / seconds))
