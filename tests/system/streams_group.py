"""The members of a group as processes: started, killed, paused, and asked to leave."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil
from streams_handlers import SETTINGS_VARIABLE, Settings
from streams_journal import Journal, Kind

LEAVE_BOUND_S = 30.0
CHILDREN_BOUND_S = 20.0
DESCRIPTION_S = 5.0
"""How long members may take to print their state."""
_HERE = Path(__file__).resolve().parent


@dataclass(eq=False)
class Member:
    """One process; each start makes a new member."""

    number: int
    slot: int
    process: asyncio.subprocess.Process
    log: Path


@dataclass
class Group:
    """The members that run; `template` has the settings that all have."""

    template: Settings
    folder: Path
    journal: Journal
    wrong: list[str] = field(default_factory=list)
    members: dict[int, Member] = field(default_factory=dict)
    leaving_ms: list[float] = field(default_factory=list)
    started: int = 0

    async def start(self, slot: int) -> None:
        """Start a member; the one in slot 0 has a static id."""
        self.started += 1
        number = self.started
        given = msgspec.structs.replace(
            self.template, member=number, static_id="slot-0" if slot == 0 else None
        )
        environment = {**os.environ, SETTINGS_VARIABLE: msgspec.json.encode(given).decode()}
        log = self.folder / f"member-{number}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(_HERE / "streams_member.py"),
                env=environment,
                stdout=output,
                stderr=output,
            )
        self.members[slot] = Member(number, slot, process, log)

    async def kill(self, slot: int) -> None:
        """Kill a member, and note that it is dead."""
        member = self.members.pop(slot)
        children = psutil.Process(member.process.pid).children(recursive=True)
        member.process.kill()
        await member.process.wait()
        self.journal.write_for(member.number, Kind.KILLED)
        await self._end_of(children, member)

    async def _end_of(self, children: list[psutil.Process], member: Member) -> None:
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, CHILDREN_BOUND_S)
        for each in alive:
            self.wrong.append(f"member {member.number} was killed, and its process {each.pid} goes on")
            each.kill()

    async def leave(self, slot: int) -> None:
        """Ask a member to stop, and wait until it has."""
        member, begun = self.members.pop(slot), time.monotonic()
        member.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(LEAVE_BOUND_S):
                code = await member.process.wait()
        except TimeoutError:
            self.wrong.append(f"member {member.number} did not leave within {LEAVE_BOUND_S:.0f} s")
            member.process.kill()
            await member.process.wait()
            self.journal.write_for(member.number, Kind.KILLED)
            return
        self.leaving_ms.append((time.monotonic() - begun) * 1_000)
        if code not in (0, -signal.SIGTERM):  # the latter: its app did not run yet, and had no partitions
            self.wrong.append(f"member {member.number} left with {code}: {last_words(member)}")
        self.journal.write_for(member.number, Kind.LEFT)

    async def pause(self, slot: int, seconds: float) -> None:
        """Stop a member for longer than its session, and continue it."""
        process = self.members[slot].process
        self.journal.write_for(self.members[slot].number, Kind.PAUSED)
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            process.send_signal(signal.SIGCONT)

    def check_alive(self) -> None:
        """Note members that ended by themselves."""
        for slot, member in list(self.members.items()):
            if member.process.returncode is not None:
                self.wrong.append(
                    f"member {member.number} ended with {member.process.returncode}: {last_words(member)}"
                )
                self.journal.write_for(member.number, Kind.KILLED)
                del self.members[slot]

    async def describe(self) -> list[str]:
        """Ask members for the state of their processors and tasks; return the last lines of each."""
        for member in self.members.values():
            member.process.send_signal(signal.SIGUSR1)
        await asyncio.sleep(DESCRIPTION_S)
        return [
            f"member {member.number}: {last_words(member, 12, 4_000)}" for member in self.members.values()
        ]

    async def end(self) -> None:
        """Kill whatever runs still."""
        for member in self.members.values():
            if member.process.returncode is None:
                member.process.kill()
                await member.process.wait()


def last_words(member: Member, lines: int = 4, characters: int = 600) -> str:
    """Return the end of what a member printed."""
    return " | ".join(member.log.read_text(errors="replace").splitlines()[-lines:])[-characters:]
