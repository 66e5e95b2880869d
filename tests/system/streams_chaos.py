"""Three members of a streams group are killed and rebalanced every few seconds: order and effects must hold.

Members are apps in processes of their own; all of them, and this program, append what happens to one journal.
`streams_rules` says what must hold of it: each key in order across all members, nothing lost, commits never
beyond an unfinished record, no repetition but after a kill. Some records fail at first, some always (they
become dead letters), some are sent again with the message id of the first.

`--effect` chooses what handlers do beside waiting for 0-50 ms: `none`; `processes` (they run on worker
processes); `sqlite` and `postgres` (insert, update and delete rows, with marks in the same transaction: the
table must be right); `transactions` (outputs, offsets and dead letters exactly once).

python tests/system/streams_chaos.py --records 1000000 --keys 10000 --seed 1
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from streams_effects import database
from streams_group import Group
from streams_handlers import IMAGES, Settings
from streams_journal import Journal, JournalReader
from streams_load import Change, changes, final_rows
from streams_member import DEAD_LETTERS
from streams_outputs import judge_dead_letters, judge_images
from streams_rules import Rules

from ottla.admin import LATEST, Admin
from ottla.broker.testing import BrokerProcess
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition
from ottla.streams.scheduling.finished_offsets import PREFIX, decode

GROUP, TOPIC = "chaos", "changes"
MEMBERS = 3
SESSION_S = 3.0
WATCH_S = 0.5
_FAULTS = ("kill", "leave", "join", "pause")
EFFECTS = ("none", "processes", "sqlite", "postgres", "transactions")


class Run:
    """One run: its load, its group, its faults, and what is judged."""

    def __init__(self, options: argparse.Namespace, servers: str, folder: Path, address: str) -> None:
        self.options = options
        self.servers = servers
        self.folder = folder
        self.address = address
        self.path = folder / "journal"
        self.path.unlink(missing_ok=True)
        self.reader = JournalReader(self.path)
        self.rules = Rules(options.partitions, options.keys)
        self.chance = random.Random(f"{options.seed} faults")
        self.sent = 0
        self.over = asyncio.Event()
        self.begun = time.monotonic()
        self.faults: dict[str, int] = {}
        self._weights = (4, 4, 1, options.pauses)
        self._judging = asyncio.Lock()
        template = Settings(
            0, servers, GROUP, TOPIC, str(self.path), options.effect, address, options.longest_ms, None,
            options.strategy, options.metadata_bytes,
        )  # fmt: skip
        self.group = Group(template, folder, Journal(self.path, 0))
        self.wrong = self.group.wrong

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, number) for number in range(self.options.partitions)]

    def changes(self) -> Iterator[Change]:
        return changes(self.options.records, self.options.keys, self.options.seed)

    async def run(self) -> None:
        """Run until all is handled; what is wrong is in `wrong`."""
        async with Admin(self.servers) as admin:
            for topic in (TOPIC, DEAD_LETTERS, IMAGES):
                await admin.topics.create(topic, partitions=self.options.partitions)
            try:
                async with asyncio.TaskGroup() as tasks:
                    others = [tasks.create_task(self._send()), tasks.create_task(self._faults(admin))]
                    await self._watch(admin)
                    self.over.set()  # the last fault comes to its end, and its member is replaced
                    if self.wrong or self.rules.wrong:
                        for each in others:
                            each.cancel()
                if not self.wrong:
                    await self._leave_all(admin)
            finally:
                await self.group.end()
        self.wrong += self.rules.wrong
        if not self.rules.counts.killed:
            self.wrong.append("nothing was killed: send fewer records per second (--per-s)")
        if not self.wrong:
            self.wrong += await asyncio.to_thread(self._judge_effects)

    # --- load

    async def _send(self) -> None:
        async with Producer(self.servers, enable_idempotence=True) as producer:
            for change in self.changes():
                await producer.send(
                    TOPIC, change.value, b"%d" % change.key, headers=[("message-id", change.message_id)]
                )
                self.sent += 1
                if not self.sent % 100:
                    await self._wait_for_turn()
            await producer.flush()

    async def _wait_for_turn(self) -> None:
        while (  # noqa: ASYNC110
            self.sent - self.rules.handled > self.options.ahead
            or self.sent > (time.monotonic() - self.begun) * self.options.per_s
        ):
            await asyncio.sleep(0.02)

    # --- faults

    async def _faults(self, admin: Admin) -> None:
        for slot in range(MEMBERS):
            await self.group.start(slot)
        while not self.over.is_set():
            await asyncio.sleep(self.options.every_s * (0.5 + self.chance.random()))
            await self._let_it_handle_some()
            if self.over.is_set():
                return
            kind = "kill" if not self.faults else self.chance.choices(_FAULTS, self._weights)[0]
            self.faults[kind] = self.faults.get(kind, 0) + 1
            slot = self.chance.choice(sorted(self.group.members))
            await self._do(kind, slot, admin)

    async def _let_it_handle_some(self) -> None:
        """Wait until records were handled since the last fault: on a slow machine no group would ever form.

        Every fifth fault comes all the same, so that rebalances are hit too.
        """
        since = self.rules.handled
        if self.chance.random() < 0.8:
            while self.rules.handled == since and not self.over.is_set():  # noqa: ASYNC110 - the watch bounds the wait
                await asyncio.sleep(0.05)

    async def _do(self, kind: str, slot: int, admin: Admin) -> None:
        if kind == "pause":
            await self.group.pause(slot, SESSION_S * (0.5 + self.chance.random()))
            return
        if kind == "join":  # one more for a while
            await self.group.start(MEMBERS)
            await asyncio.sleep(self.options.every_s)
            await self.group.leave(MEMBERS)
            return
        if kind == "kill":
            await self.group.kill(slot)
            await self.judge(admin)
        else:
            await self.group.leave(slot)
        await asyncio.sleep(self.chance.random() * 2)
        await self.group.start(slot)

    # --- judging

    async def _watch(self, admin: Admin) -> None:
        progress_s, handled, printed_s = time.monotonic(), 0, time.monotonic()
        while self.rules.handled < self.options.records and not (self.rules.wrong or self.wrong):
            await asyncio.sleep(WATCH_S)
            await self.judge(admin)
            self.group.check_alive()
            now = time.monotonic()
            if self.rules.handled > handled:
                progress_s, handled = now, self.rules.handled
            if now - progress_s > self.options.stalled_s:
                await self.stalled()
            if now - printed_s > self.options.print_s:
                printed_s = now
                self.report()

    async def stalled(self) -> None:
        """Note that nothing is handled any more, and what the members say of themselves."""
        self.wrong.append(f"nothing was handled for {self.options.stalled_s:.0f} s")
        self.wrong += await self.group.describe()

    async def judge(self, admin: Admin) -> None:
        """Read the commits, then the events up to a later moment, and judge both."""
        async with self._judging:
            commits = await admin.groups.committed(GROUP, self.partitions)
            self.rules.feed(self.reader.read())
            for partition, (offset, metadata) in commits.items():
                ranges = tuple(decode(partition, offset, metadata))
                if metadata and not (metadata.startswith(PREFIX) and ranges):
                    self.rules.violated(f"c: the metadata of {partition} at {offset} cannot be read")
                self.rules.commit_read(partition.partition, offset, ranges)

    async def _all_committed(self, admin: Admin) -> None:
        """Wait until what a member handled before it was killed is handled again, and committed."""
        ends = await admin.offsets.find(dict.fromkeys(self.partitions, LATEST))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.options.stalled_s):
                while any(
                    each.known[0] < ends[TopicPartition(TOPIC, each.number)] for each in self.rules.partitions
                ):
                    await asyncio.sleep(WATCH_S)
                    await self.judge(admin)

    async def _leave_all(self, admin: Admin) -> None:
        await self._all_committed(admin)
        await asyncio.gather(*map(self.group.leave, list(self.group.members)))
        await self.judge(admin)
        found = await admin.offsets.find(dict.fromkeys(self.partitions, LATEST))
        produced = [0] * self.options.keys
        for change in self.changes():
            produced[change.key] += 1
        self.rules.judge_end([found[each] for each in self.partitions], produced)

    def _judge_effects(self) -> list[str]:
        effect = self.options.effect
        if effect in ("sqlite", "postgres"):
            return self._judge_rows()
        wrong = judge_dead_letters(self.servers, self.changes(), once=effect == "transactions")
        if effect == "transactions":
            wrong += judge_images(self.servers, self.path, self.changes())
        return wrong

    def _judge_rows(self) -> list[str]:
        table, expected = database(self.address), final_rows(self.changes())
        found, marks = table.rows(), len({(each.key, each.change) for each in self.changes()})
        wrong = [
            f"the row of key {key} is {found.get(key)}, not {expected.get(key)}"
            for key in found.keys() | expected.keys()
            if found.get(key) != expected.get(key)
        ]
        if table.marks() != marks:
            wrong.append(f"there are {table.marks()} marks for {marks} changes")
        return wrong[:10]

    def report(self) -> None:
        """Print how far the run is."""
        counts, seconds = self.rules.counts, time.monotonic() - self.begun
        handled, rate = self.rules.handled, self.rules.handled / seconds
        left_s = (self.options.records - handled) / rate if rate else 0.0
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        print(
            f"  {seconds:6.0f} s  {handled:>9,} of {self.options.records:,} handled ({rate:,.0f}/s, about "
            f"{left_s:,.0f} s left)  {counts.repeated:,} repeated  {counts.failed:,} failed  "
            f"{counts.set_aside:,} set aside  {counts.lost} lost  {counts.late} late  "
            f"{counts.assigned:,} assignments  [{faults}]",
            flush=True,
        )


# --- what runs beside the group


@contextlib.contextmanager
def broker_of(kind: str, folder: Path) -> Iterator[str]:
    """Run the broker."""
    settings = {
        "group.min.session.timeout.ms": "1000",
        "group.initial.rebalance.delay.ms": "0",
        "transaction.state.log.num.partitions": "4",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "offsets.topic.num.partitions": "4",
    }
    if kind == "ottla":
        with BrokerProcess(folder, settings) as broker:
            yield broker.bootstrap_servers
        return
    from peers.apache_kafka import ApacheKafka

    with ApacheKafka(folder, settings, heap="512m") as kafka:
        yield kafka.bootstrap_servers


@contextlib.contextmanager
def address_of(effect: str, folder: Path) -> Iterator[str]:
    """Create the database of an effect."""
    if effect == "postgres":
        from peers.postgres import Postgres, missing_postgres

        if (reason := missing_postgres()) is not None:
            raise SystemExit(f"--effect postgres {reason}")
        with Postgres(folder) as server:
            database(server.dsn).create()
            yield server.dsn
        return
    address = str(folder / "effects.db")
    if effect == "sqlite":
        database(address).create()
    yield address


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--effect", choices=EFFECTS, default="none")
    parser.add_argument("--broker", choices=("ottla", "apache"), default="ottla")
    parser.add_argument("--every-s", type=float, default=4.0, help="the mean time between two faults")
    parser.add_argument("--longest-ms", type=int, default=50, help="the longest time of a handler")
    parser.add_argument("--ahead", type=int, default=50_000, help="how far the producer is ahead")
    parser.add_argument("--per-s", type=float, default=1e9, help="how fast records are sent")
    parser.add_argument("--pauses", type=float, default=1.0, help="the weight of pauses among the faults")
    parser.add_argument("--metadata-bytes", type=int, default=4_096, help="commit_metadata_max_bytes")
    parser.add_argument("--strategy", default="cooperative-sticky", help="partition_assignment_strategy")
    parser.add_argument("--stalled-s", type=float, default=90.0, help="how long nothing may be handled")
    parser.add_argument("--print-s", type=float, default=10.0, help="the time between two lines of progress")
    parser.add_argument("--keep", type=Path, help="a folder for the journal and the logs of members")
    return parser.parse_args(arguments)


def main() -> int:
    options = options_of()
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-streams-chaos-"))
        folder = options.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        servers = stack.enter_context(broker_of(options.broker, Path(made) / "broker"))
        address = stack.enter_context(address_of(options.effect, Path(made)))
        run = Run(options, servers, folder, address)
        asyncio.run(run.run())
        run.report()
    if run.rules.counts.repeated:
        print(f"  what a kill repeated had ended at most {run.rules.counts.window_ms:,} ms before it")
    if run.group.leaving_ms:
        print(
            f"  {len(run.group.leaving_ms)} members left, the slowest in {max(run.group.leaving_ms):,.0f} ms"
        )
    for line in run.wrong[:20]:
        print(f"  WRONG {line}")
    again = f"again with: --seed {options.seed} --records {options.records} --effect {options.effect}"
    print("ok: every key in order, nothing lost, no effect doubled" if not run.wrong else f"wrong; {again}")
    return 1 if run.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
