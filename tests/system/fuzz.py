"""A million structured frames against a broker: it must survive, stay small and keep acknowledged records.

Frames of every served API are sent over several connections: valid ones with unusual contents, truncated
ones, flipped bits, unknown keys, wrong sizes. Meanwhile a canary produces through an ordinary client and must
find its records at the end. Then the new topics and groups are deleted, and the broker's memory must return
to its initial size, within 16 MiB.

python tests/system/fuzz.py --frames 1000000

With `--attacks` it runs the attacks of `attacks.py` instead, each by its name, and shows what they cost.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import select
import socket
import sys
import tempfile
import time
from pathlib import Path

import attacks
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from random_frames import RandomFrames

from ottla.broker.testing import BrokerProcess
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

CANARY = "canary"
ALLOWED_GROWTH_MIB = 16
FRAMES_PER_CONNECTION = 40
SETTINGS = {
    "max.partitions.per.topic": "4",
    "group.max.session.timeout.ms": "1000",
    "log.segment.delete.delay.ms": "500",
    "log.segment.bytes": "10000000",
    "socket.request.max.bytes": "1000000",
    "producer.id.expiration.ms": "1000",
    "producer.id.expiration.check.interval.ms": "1000",
}
_TROUBLE = re.compile(r"Traceback|Unhandled|never retrieved|never awaited|Exception in callback")


class Attack:
    """Connections that frames are sent to; a closed one is opened again."""

    def __init__(self, port: int, width: int = 8) -> None:
        self._port = port
        self._sockets: list[socket.socket | None] = [None] * width
        self._sent = [0] * width
        self.reconnects = 0

    def throw(self, number: int, frame: bytes) -> None:
        """Send one frame without waiting for its answer; read other answers that have arrived."""
        lane = number % len(self._sockets)
        link = self._sockets[lane] or self._open(lane)
        try:
            self._send(link, frame)
            self._drain(link)
        except OSError:
            self._close(lane)
        else:
            self._sent[lane] += 1
            if self._sent[lane] >= FRAMES_PER_CONNECTION:
                self._close(lane)

    def _send(self, link: socket.socket, frame: bytes) -> None:
        while frame:
            if not select.select([], [link], [], 2)[1]:
                raise TimeoutError
            frame = frame[link.send(frame) :]

    def _drain(self, link: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while link.recv(65536):
                pass
            raise ConnectionResetError  # an empty read: the broker has closed

    def _open(self, lane: int) -> socket.socket:
        self.reconnects += 1
        self._sent[lane] = 0
        link = socket.create_connection(("127.0.0.1", self._port), timeout=2)
        link.setblocking(False)
        self._sockets[lane] = link
        return link

    def _close(self, lane: int) -> None:
        if (link := self._sockets[lane]) is not None:
            link.close()
            self._sockets[lane] = None
            self._sent[lane] = 0

    def close(self) -> None:
        for lane in range(len(self._sockets)):
            self._close(lane)


class Canary:
    """An ordinary client whose records must all exist at the end."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 0})
        self.sung = 0

    def sing(self) -> None:
        self._producer.produce(CANARY, b"%d" % self.sung, partition=0)
        if self._producer.flush(20):
            raise AssertionError("the canary's record was not acknowledged within 20 s")
        self.sung += 1

    def found(self) -> list[int]:
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": "canary", "log_level": 0})
        consumer.assign([TopicPartition(CANARY, 0, OFFSET_BEGINNING)])
        messages = consumer.consume(self.sung, timeout=20)
        consumer.close()
        return [int(message.value()) for message in messages]


def served_apis(port: int) -> list[ApiKey]:
    """Return the APIs that the broker serves."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
        frames = RandomFrames(0, [ApiKey.API_VERSIONS])
        body = frames.header(ApiKey.API_VERSIONS, 0, ApiVersionsRequest)
        link.sendall(len(body).to_bytes(4) + body)
        answer = link.makefile("rb")
        data = answer.read(int.from_bytes(answer.read(4)))
    return [ApiKey(one.api_key) for one in ApiVersionsResponse.decode(data[4:], 0).api_keys]


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the broker is gone")


def clean_up(servers: str) -> None:
    """Delete every topic but the canary's, and every group."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    topics = [
        name for name in admin.list_topics(timeout=30).topics if name != CANARY and not name.startswith("__")
    ]
    for future in (admin.delete_topics(topics) if topics else {}).values():
        with contextlib.suppress(KafkaException):
            future.result(30)
    time.sleep(2.5)
    for _ in range(5):
        groups = [group.group_id for group in admin.list_consumer_groups().result(30).valid]
        for future in (
            admin.delete_consumer_groups([g for g in groups if g]) if any(groups) else {}
        ).values():
            with contextlib.suppress(KafkaException):
                future.result(30)
        time.sleep(1)


def attack(broker: BrokerProcess, frames: RandomFrames, count: int, canary: Canary) -> int:
    lines = Attack(broker.port)
    begun = time.perf_counter()
    for number in range(count):
        lines.throw(number, frames.frame())
        if number % 5000 == 0:
            canary.sing()
        if number and number % 100_000 == 0:
            rate = number / (time.perf_counter() - begun)
            print(f"  {number:>9,} frames  {rate:,.0f}/s  {resident_mib(broker.pid):.0f} MiB", flush=True)
    lines.close()
    return lines.reconnects


def run(folder: Path, count: int, seed: int) -> list[str]:
    wrong: list[str] = []
    with BrokerProcess(folder, SETTINGS) as broker:
        canary = Canary(broker.bootstrap_servers)
        frames = RandomFrames(seed, served_apis(broker.port))
        attack(broker, frames, max(2000, count // 20), canary)
        clean_up(broker.bootstrap_servers)
        before = resident_mib(broker.pid)
        reconnects = attack(broker, frames, count, canary)
        clean_up(broker.bootstrap_servers)
        growth = resident_mib(broker.pid) - before
        print(
            f"  {count:,} frames, {reconnects:,} connections, memory {growth:+.1f} MiB from {before:.0f} MiB"
        )
        if growth > ALLOWED_GROWTH_MIB:
            wrong.append(f"memory grew by {growth:.1f} MiB")
        if canary.found() != list(range(canary.sung)):
            wrong.append("records of the canary are missing or out of order")
    text = broker.log_file.read_text(errors="replace")
    wrong += troubles(text)
    if wrong:
        Path(tempfile.gettempdir(), "ottla-fuzz.log").write_text(text)
    return wrong


def troubles(log: str) -> list[str]:
    """Return lines of the broker's log that must not occur, each with its context."""
    lines = log.splitlines()
    return [
        "in the broker's log:\n    " + "\n    ".join(lines[max(0, number - 1) : number + 20])
        for number, line in enumerate(lines)
        if _TROUBLE.search(line)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--attacks",
        nargs="?",
        const="",
        metavar="NAME",
        help="run attacks instead, all or those with NAME in theirs",
    )
    parser.add_argument(
        "--ignore-times", action="store_true", help="fail for memory and answers only: the machine is busy"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-fuzz-") as folder:
        if options.attacks is not None:
            wrong = attacks.run(Path(folder), options.attacks, with_times=not options.ignore_times)
        else:
            wrong = run(Path(folder), options.frames, options.seed)
    for line in wrong[:20]:
        print(f"  WRONG {line}")
    print("ok: it lives, stayed small and kept its word" if not wrong else f"{len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
