"""Compare the hot paths of this tree with those of an earlier one, in interleaved pairs.

`--before` names the Python of an environment in which the earlier tree is installed; `nox -s compare -- REF`
makes one. Each round measures before, after, and before once more: the second tells how far apart two
measurements of the same code are. A path counts as slower when the median of after/before lies above nine
tenths of the ratios of before/before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import broker_network
import consumer_sdk
from broker_network import CASES, Case, compile_native
from clients_compared import fresh_topic
from contenders import Contender, as_installed, show

HERE: Final = Path(__file__).resolve().parent
TURNS: Final = ("before", "after", "again")
WARM_UP_S, LOAD_S = 0.3, 1.2
PRODUCED: Final = {
    "await send": 400_000,
    "await send(key)": 400_000,
    "send_nowait": 800_000,
    "send_many": 2_000_000,
    "send_many(keys)": 1_000_000,
    "send_arrow": 2_000_000,
}
CONSUMED: Final = {"getmany": 2_000_000, "async for": 1_000_000, "Arrow": 4_000_000}
CLIENT_RECORD_BYTES: Final = 100
_BROKER = ["-m", "ottla.broker", "start", "--listen", "127.0.0.1:0", "--no-uvloop"]
_SETTINGS = {"num.partitions": "1", "log.segment.delete.delay.ms": "100"}


@dataclass
class Pairs:
    """The figures of one hot path, round after round; the smaller, the better."""

    name: str
    unit: str
    rounds: list[dict[str, float]] = field(default_factory=list)

    def median(self, turn: str) -> float:
        """The median figure of one tree."""
        return statistics.median(one[turn] for one in self.rounds)

    def ratios(self, turn: str) -> list[float]:
        """How a turn compares with `before`, round by round."""
        return sorted(one[turn] / one["before"] for one in self.rounds)

    @property
    def spread(self) -> tuple[float, float]:
        """Bounds of the ratios of before/before, without the lowest and the highest tenth."""
        same = self.ratios("again")
        cut = len(same) // 10
        return same[cut], same[-1 - cut]

    @property
    def row(self) -> tuple[str, ...]:
        low, high = self.spread
        ratio = statistics.median(self.ratios("after"))
        verdict = "slower" if ratio > high else "faster" if ratio < low else "equal"
        figures = (f"{self.median('before'):.3f}", f"{self.median('after'):.3f}")
        return (self.name, *figures, self.unit, f"{ratio:.3f}", f"{low:.3f} to {high:.3f}", verdict)


def paired(name: str, unit: str, rounds: int, measure: Callable[[str], float]) -> Pairs:
    """Measure all variants in each round, and begin each round with another one."""
    pairs = Pairs(name, unit)
    for number in range(rounds):
        first = number % len(TURNS)
        pairs.rounds.append({turn: measure(turn) for turn in TURNS[first:] + TURNS[:first]})
    print("  " + "  ".join(pairs.row), flush=True)
    return pairs


# --- the broker


@contextmanager
def serving(python: str, folder: Path) -> Iterator[Contender]:
    """Run a broker of one tree; yield it once it accepts connections."""
    folder.mkdir(parents=True)
    read_end, write_end = os.pipe()
    extra = ["--data-dir", str(folder), "--ready-fd", str(write_end)]
    for key, value in _SETTINGS.items():
        extra += ["--set", f"{key}={value}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [python, *_BROKER, *extra],
            env=as_installed(folder.parent), pass_fds=(write_end,), stdout=log, stderr=log,
        )  # fmt: skip
    os.close(write_end)
    try:
        with os.fdopen(read_end) as ready:
            line = ready.readline()
        if not line:
            raise RuntimeError(f"the broker did not start: {(folder / 'log').read_text()[-2000:]}")
        yield Contender(folder.name, line.split()[-1], process.pid, folder)
    finally:
        process.terminate()
        process.wait(60)


def network_pairs(brokers: dict[str, Contender], folder: Path, rounds: int, wanted: str) -> list[Pairs]:
    """CPU of the broker for each request."""
    found = []
    for case in (one for one in CASES if wanted in one.name):
        with ExitStack() as stack:
            if case.api == "fetch":
                topics = {turn: broker_network.prepare(folder, brokers[turn], case) for turn in TURNS}
                for turn in TURNS:
                    stack.callback(delete_topic, brokers[turn].bootstrap_servers, topics[turn][0])
                measure = fetching(folder, brokers, topics, case)
            else:
                measure = producing(folder, brokers, case)
            found.append(paired(case.name, "us/request", rounds, measure))
    return found


def producing(folder: Path, brokers: dict[str, Contender], case: Case) -> Callable[[str], float]:
    """Produce to a new topic each time; written data is deleted before it reaches the disk."""

    def measure(turn: str) -> float:
        topic, last = broker_network.prepare(folder, brokers[turn], case)
        try:
            return loaded(folder, brokers[turn], topic, case, last)
        finally:
            delete_topic(brokers[turn].bootstrap_servers, topic)

    return measure


def fetching(
    folder: Path, brokers: dict[str, Contender], topics: dict[str, tuple[str, int]], case: Case
) -> Callable[[str], float]:
    """Fetch from a topic that was filled once."""

    def measure(turn: str) -> float:
        topic, offsets = topics[turn]
        return loaded(folder, brokers[turn], topic, case, offsets)

    return measure


def loaded(folder: Path, broker: Contender, topic: str, case: Case, last: int) -> float:
    """CPU microseconds for each request, after a warm-up."""
    # A leader that has just been elected may refuse the first requests.
    broker_network.load(folder, broker.port, topic, case, WARM_UP_S, last, floor=False)
    return broker_network.measure(folder, broker.pid, broker.port, topic, case, LOAD_S, last, floor=False)[0]


def delete_topic(servers: str, topic: str) -> None:
    from confluent_kafka.admin import AdminClient

    for future in AdminClient({"bootstrap.servers": servers}).delete_topics([topic]).values():
        with suppress(Exception):
            future.result(30)


# --- clients


def in_child(python: str, script: str, idiom: str, servers: str, topic: str, count: int) -> float:
    """CPU seconds of a client of one tree for a million messages."""
    task = {"name": idiom, "servers": servers, "topic": topic, "size": CLIENT_RECORD_BYTES, "count": count}
    done = subprocess.run(
        [python, str(HERE / script), "--child", json.dumps(task)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{idiom}: {(done.stderr or done.stdout)[-2000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    return float(result["cpu_s"] / result["messages"] * 1e6)


def producer_pairs(pythons: dict[str, str], servers: str, rounds: int) -> list[Pairs]:
    """CPU of our producer for each way to send."""

    def measuring(idiom: str, count: int) -> Callable[[str], float]:
        def measure(turn: str) -> float:
            with fresh_topic(servers, f"two-{time.monotonic_ns()}") as topic:
                return in_child(pythons[turn], "producer_sdk.py", idiom, servers, topic, count)

        return measure

    return [
        paired(how, "CPU s/M", rounds, measuring(f"ottla {how} (asyncio)", count))
        for how, count in PRODUCED.items()
    ]


def consumer_pairs(pythons: dict[str, str], servers: str, rounds: int) -> list[Pairs]:
    """CPU of our consumer for each way to read."""
    with fresh_topic(servers, "two-consumed") as topic:
        consumer_sdk.fill(servers, topic, CLIENT_RECORD_BYTES, max(CONSUMED.values()))

        def measuring(idiom: str, count: int) -> Callable[[str], float]:
            return lambda turn: in_child(pythons[turn], "consumer_sdk.py", idiom, servers, topic, count)

        return [
            paired(how, "CPU s/M", rounds, measuring(f"ottla {how} (asyncio)", count))
            for how, count in CONSUMED.items()
        ]


# --- start and idle memory


def start_pairs(pythons: dict[str, str], folder: Path, rounds: int) -> list[Pairs]:
    """Return the CPU until a broker is ready, and its memory a moment later."""
    idle: dict[str, list[float]] = {turn: [] for turn in TURNS}

    def measure(turn: str) -> float:
        with serving(pythons[turn], folder / f"start-{time.monotonic_ns()}") as broker:
            cpu_ms = broker.cpu_seconds() * 1e3
            time.sleep(1.5)
            idle[turn].append(broker.resident_mib())
            return cpu_ms

    started = paired("start", "CPU ms", rounds, measure)
    memory = paired("idle memory", "MiB", rounds, lambda turn: idle[turn].pop(0))
    return [started, memory]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--before", required=True, help="Python of the environment with the earlier tree")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--only", default="", choices=("", "broker", "producer", "consumer", "start"))
    parser.add_argument("--case", default="", help="only the broker's cases whose name holds this")
    options = parser.parse_args()
    pythons = {"before": options.before, "after": sys.executable, "again": options.before}
    wanted = [options.only] if options.only else ["broker", "producer", "consumer", "start"]
    found: list[Pairs] = []
    with tempfile.TemporaryDirectory(prefix="ottla-two-trees-") as name, ExitStack() as stack:
        folder = Path(name)
        compile_native(folder)
        brokers = {turn: stack.enter_context(serving(pythons[turn], folder / turn)) for turn in TURNS}
        servers = brokers["after"].bootstrap_servers
        if "broker" in wanted:
            found += network_pairs(brokers, folder, options.pairs, options.case)
        if "producer" in wanted:
            found += producer_pairs(pythons, servers, options.pairs)
        if "consumer" in wanted:
            found += consumer_pairs(pythons, servers, options.pairs)
        if "start" in wanted:
            found += start_pairs(pythons, folder, options.pairs)
    header = ("", "before", "after", "unit", "after/before", "before/before", "")
    show(f"median of {options.pairs} pairs", [one.row for one in found], header)
    return 1 if any(one.row[-1] == "slower" for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
