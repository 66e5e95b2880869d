"""Kill one of two members whose handlers write to SQLite, on a machine under load: the other one goes on.

Each round has a broker, a database and a group of its own. A member is killed in the midst of its records; in
half of the rounds nothing takes its place, so that the other member must finish them. In the end the table is
right, every key was handled in order (`streams_rules`), and all is committed. A round in which nothing is
handled for `--stalled-s` ends with the state of the members that live: processors, tasks and threads. Then a
member is added, and the report says whether that made the group go on.

`--load` processes spin beside broker and group, with a lower priority by `--load-nice`: on two cores, fifty
of the same priority leave a member so little that its imports take minutes. With `--nice` the whole run has
a lower priority: where other work uses the machine, that starves it as well.

python tests/system/streams_kills.py --rounds 50 --load 50
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import Process
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from streams_chaos import Run, address_of, broker_of, options_of

from ottla.admin import Admin

MEMBERS = 2


class KillRound(Run):
    """A run whose faults are a few kills."""

    async def _faults(self, admin: Admin) -> None:
        for slot in range(MEMBERS):
            await self.group.start(slot)
        share = self.options.records // (self.options.kills + 1)
        for number in range(1, self.options.kills + 1):
            if not await self._handled(share * number):
                return
            is_replaced = self.chance.random() < 0.5
            kind = "kill, replaced" if is_replaced else "kill"
            self.faults[kind] = self.faults.get(kind, 0) + 1
            slot = self.chance.choice(sorted(self.group.members))
            await self.group.kill(slot)
            await self.judge(admin)
            if is_replaced or len(self.group.members) == 0:
                await asyncio.sleep(self.chance.random() * 2)
                await self.group.start(slot)

    async def _handled(self, records: int) -> bool:
        """Wait until so many records are handled; return false if the run is over before."""
        while self.rules.handled < records and not self.over.is_set():  # noqa: ASYNC110 - the watch bounds it
            await asyncio.sleep(0.02)
        return not self.over.is_set()

    async def stalled(self) -> None:
        """Describe the members, then add one, and note whether the group goes on with it."""
        await super().stalled()
        handled = self.rules.handled
        await self.group.start(MEMBERS)
        async with Admin(self.servers) as admin:
            for _ in range(int(self.options.stalled_s)):
                await asyncio.sleep(1)
                await self.judge(admin)
        more = self.rules.handled - handled
        self.wrong.append(f"after a member was added, {more} more records were handled")


@contextlib.contextmanager
def load(processes: int, niceness: int) -> Iterator[None]:
    """Spin on processes within the block."""
    spinning = [Process(target=_spin, args=(niceness,), daemon=True) for _ in range(processes)]
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
        for process in spinning:
            process.join()


def _spin(niceness: int) -> None:
    os.nice(niceness)
    parent = os.getppid()
    while os.getppid() == parent:  # it ends with the run, even one that is killed
        for _ in range(1_000_000):
            pass


def run_round(options: argparse.Namespace, folder: Path) -> list[str]:
    """Run one round; return what is wrong."""
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(broker_of(options.broker, folder / "broker"))
        address = stack.enter_context(address_of(options.effect, folder))
        stack.enter_context(load(options.load, options.load_nice))
        round_ = KillRound(options, servers, folder, address)
        asyncio.run(round_.run())
        round_.report()
    return round_.wrong


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line: the options of `streams_chaos`, and those of rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--load", type=int, default=50, help="how many processes spin beside the group")
    parser.add_argument("--load-nice", type=int, default=0, help="how much lower the priority of these is")
    parser.add_argument("--nice", type=int, default=0, help="what is added to the niceness of the run")
    parser.add_argument("--kills", type=int, default=2, help="how many members each round kills")
    own, rest = parser.parse_known_args(arguments)
    small = ["--effect", "sqlite", "--records", "6240", "--keys", "200", "--partitions", "4", "--pauses", "0"]
    options = options_of([*small, "--stalled-s", "120", "--print-s", "60", *rest])
    return argparse.Namespace(**vars(options), **vars(own))


def main() -> int:
    options, failed = parsed(), 0
    os.nice(options.nice)
    first_seed = options.seed
    for number in range(options.rounds):
        options.seed, begun = first_seed + number, time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ottla-streams-kills-") as made:
            folder = Path(made) if options.keep is None else options.keep / str(options.seed)
            folder.mkdir(parents=True, exist_ok=True)
            wrong = run_round(options, folder)
        failed += bool(wrong)
        said = "wrong" if wrong else "ok"
        print(
            f"round {number + 1}, seed {options.seed}: {said} in {time.monotonic() - begun:.0f} s", flush=True
        )
        for line in wrong[:20]:
            print(f"  WRONG {line}", flush=True)
    right = f"{options.rounds - failed} of {options.rounds} rounds were right"
    print(right if failed else f"ok: {right}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
