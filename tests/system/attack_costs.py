"""The costs of attacks: each runs on a broker of its own, with a well-behaved client beside it.

For each attack the table shows the largest memory of the broker, the longest stall that the client has seen,
the longest turn of the event loop (processor time) with the number of turns over 10 ms, and the 99th
percentile of the acknowledgements. The first row, without an attack, is what the machine itself does. Below
a row stand stacks of turns of 50 ms and longer.

python tests/system/fuzz.py --attacks
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from attack_probe import READY
from measured_broker import MeasuredBroker, Turns

from ottla.broker.testing import BrokerFailed

ALLOWED_STALL_MS = 100.0
ALLOWED_RSS_MIB = 512.0
ALLOWED_P99_MS = 50.0
ALLOWED_TURN_MS = 25.0
"""Of turns of a secured broker: a few shares of the loop's budget together."""


@dataclass(frozen=True)
class Cost:
    """The cost of an attack for the broker and its other clients."""

    rss_mib: float
    stall_ms: float
    turns: Turns
    is_secured: bool
    p99_ms: float
    stacks: list[str]
    """Where the longest turns were."""

    def too_much(self, *, with_times: bool) -> list[str]:
        """Return the goals that were missed."""
        said = [f"{self.rss_mib:.0f} MiB of memory"] if self.rss_mib > ALLOWED_RSS_MIB else []
        if with_times and self.stall_ms > ALLOWED_STALL_MS:
            said.append(f"the event loop stood still for {self.stall_ms:.0f} ms")
        if with_times and self.is_secured and self.turns.longest_ms > ALLOWED_TURN_MS:
            said.append(f"a turn of the event loop took the processor for {self.turns.longest_ms:.0f} ms")
        if with_times and self.p99_ms > ALLOWED_P99_MS:
            said.append(f"p99 of the well-behaved producer is {self.p99_ms:.0f} ms")
        return said


Attack = Callable[[Any], None]


class MadeAttack(NamedTuple):
    """An attack, and the maker of the broker that it is on, in a directory."""

    run: Attack
    broker: Callable[[Path], MeasuredBroker] = MeasuredBroker


ATTACKS: dict[str, MadeAttack] = {}


def attack(
    name: str, broker: Callable[[Path], MeasuredBroker] = MeasuredBroker
) -> Callable[[Attack], Attack]:
    """Register an attack under a name."""

    def register(run: Attack) -> Attack:
        ATTACKS[name] = MadeAttack(run, broker)
        return run

    return register


# --- measuring


@contextlib.contextmanager
def probed(port: int) -> Iterator[list[dict[str, list[float]]]]:
    """Run the well-behaved client meanwhile; its times are in the list afterwards."""
    program = Path(__file__).with_name("attack_probe.py")
    process = subprocess.Popen(
        [sys.executable, str(program), str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    times: list[dict[str, list[float]]] = []
    try:
        if process.stdout.readline().strip() != READY:
            raise AssertionError("the well-behaved client could not begin")
        yield times
        process.stdin.close()
        text = process.stdout.read()
        if not text:
            raise AssertionError("the well-behaved client lost its connection")
        times.append(json.loads(text))
    finally:
        process.kill()
        process.wait()


def largest_rss_mib(pid: int) -> float:
    """Return the most memory that a process has had since its start."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the broker is gone")


@contextlib.contextmanager
def killed_after(broker: MeasuredBroker, nice: int | None) -> Iterator[MeasuredBroker]:
    """Start a broker, with this priority if one is given, and kill it in the end.

    Some attacks leave work behind that a clean stop would wait for; one that fails is to tell why it did.
    """
    broker.start()
    try:
        if nice is not None:
            os.setpriority(os.PRIO_PROCESS, broker.pid, nice)  # of the thread with the loop
        yield broker
    finally:
        broker.kill()


def cost_of(made: MadeAttack, folder: Path, nice: int | None = None) -> Cost:
    """Run one attack on a new broker. Raises AssertionError when it succeeds."""
    with killed_after(made.broker(folder), nice) as broker:
        with probed(broker.port) as times:
            time.sleep(1)
            began_s = time.monotonic()
            made.run(broker)
            time.sleep(1)
            turns = broker.turns_since(began_s)
        answers, produced = times[0]["answers_ms"], sorted(times[0]["produce_ms"])
        if not produced:
            raise AssertionError("the well-behaved client was given no answer")
        p99 = produced[min(len(produced) - 1, int(len(produced) * 0.99))]
        rss_mib = largest_rss_mib(broker.pid)
        is_secured = made.broker is not MeasuredBroker
        return Cost(rss_mib, max(answers), turns, is_secured, p99, broker.longest_stacks_since(began_s))


def run(folder: Path, wanted: str, *, with_times: bool, nice: int | None = None) -> list[str]:
    """Run the attacks whose names contain `wanted`; print a row for each, and return what went wrong."""
    wrong: list[str] = []
    print(f"  {'attack':<62} {'memory':>9} {'stall':>10} {'turn':>15} {'p99':>9}")
    for number, (name, made) in enumerate(ATTACKS.items()):
        if wanted.lower() not in name.lower():
            continue
        try:
            cost = cost_of(made, folder / str(number), nice)
        except (AssertionError, OSError, BrokerFailed, ExceptionGroup) as failure:
            error: Exception = failure
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            print(f"  {name:<62} {error}", flush=True)
            wrong.append(f"{name}: {error}")
            continue
        print(
            f"  {name:<62} {cost.rss_mib:>5.0f} MiB {cost.stall_ms:>7.0f} ms "
            f"{cost.turns.longest_ms:>5.1f} ms {cost.turns.over_10_ms:>6} {cost.p99_ms:>6.1f} ms",
            flush=True,
        )
        for stack in cost.stacks:
            print(f"    {stack}", flush=True)
        wrong += [f"{name}: {said}" for said in cost.too_much(with_times=with_times)]
    return wrong
