"""Rates of clients with quotas, against Ottla and Apache Kafka 3.9 in one run.

Java's, librdkafka's and Ottla's clients produce, fetch, and ask for metadata as fast as they can: one client
with a quota, twenty that share one, and twenty with one each. After the first full window their rates are
counted for a minute, as parts of their quotas. A client without a quota produces fifty small records a second
meanwhile: its 99th percentile, before and during that, and during that at an idle broker.

The windows are Kafka's defaults, eleven of a second; `--windows` shortens them.

python benchmarks/quotas.py [--seconds 60] [--windows 11] [--without-kafka]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicPartition
from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import Producer as LibrdkafkaProducer
from confluent_kafka.admin import AdminClient

from contenders import Contender, kafka_is_here, ottla, quiet, show
from ottla.admin import CLIENT_ID, Admin
from ottla.client.cluster import Cluster
from ottla.client.config import ClientConfig
from ottla.consumer import Consumer
from ottla.producer import Producer
from peers.apache_kafka import ApacheKafka
from peers.java import compile_program, run_program
from peers.maven import KAFKA_3, kafka_clients
from peers.processes import free_port

PROGRAM: Final = Path(__file__).resolve().parent / "native" / "QuotaLoad.java"
BEANS: Final = Path(__file__).resolve().parent / "native" / "RequestTimes.java"
KINDS: Final = ("java", "librdkafka", "ottla")
ROLES: Final = {
    "produce": "producer_byte_rate",
    "fetch": "consumer_byte_rate",
    "request": "request_percentage",
}
COUNTS: Final = {"one": 1, "shared": 20, "own": 20}
SHARINGS: Final = {"one": "one client", "shared": "20 that share a quota", "own": "20 with one each"}
SIZE: Final = 10_000
"""Bytes of a value; what is around it in a request is a hundredth of it."""
LIMITS: Final = {
    ("produce", "one"): 100_000.0, ("produce", "shared"): 200_000.0, ("produce", "own"): 20_000.0,
    ("fetch", "one"): 100_000.0, ("fetch", "shared"): 200_000.0, ("fetch", "own"): 20_000.0,
    ("request", "one"): 0.2, ("request", "shared"): 0.5, ("request", "own"): 0.05,
}  # fmt: skip
TOPIC: Final = "filled"
TOPIC_RECORDS: Final = 500
STARTING_S: Final = 20.0
SETTLING_S: Final = 10.0
"""Time beside the windows until rates are counted: clients on a busy machine begin late."""
QUIET_S: Final = 20.0
ASKED_AT_ONCE: Final = 4
"""Requests for metadata that a client has under way."""
PROBES_PER_S: Final = 50


class Load(NamedTuple):
    """A client that takes what it gets."""

    role: str
    client_id: str


class Times(NamedTuple):
    """When loads begin, and from when to when they are counted, by the wall clock."""

    begin_s: float
    from_s: float
    until_s: float


class Counted:
    """The share of one client in the time that counts."""

    def __init__(self, times: Times) -> None:
        self.times = times
        self.amount = 0

    def add(self, amount: int) -> None:
        if self.times.from_s <= time.time() < self.times.until_s:
            self.amount += amount

    @property
    def is_over(self) -> bool:
        return time.time() >= self.times.until_s


def client_ids(kind: str, role: str, sharing: str) -> list[str]:
    """Return the client ids of a load; clients that share a quota have the same one."""
    name = f"{kind}-{role}-{sharing}"
    return [f"{name}-{number}" if sharing == "own" else name for number in range(COUNTS[sharing])]


def loads_of(kind: str) -> list[Load]:
    return [
        Load(role, client_id)
        for role in ROLES
        for sharing in COUNTS
        for client_id in client_ids(kind, role, sharing)
    ]


# ---- loads: each kind of clients runs in a process of its own


def run_loads(kind: str, servers: str, times: Times) -> None:
    """Run all loads of a kind, and print what each got."""
    counted = [(load, Counted(times)) for load in loads_of(kind)]
    if kind == "librdkafka":
        librdkafkas_loads(servers, counted)
    else:
        asyncio.run(ottlas_loads(servers, counted))
    for load, got in counted:
        print(load.client_id, got.amount)
    sys.stdout.flush()
    os._exit(0)  # nothing that still waits for a throttle


def librdkafkas_loads(servers: str, counted: Sequence[tuple[Load, Counted]]) -> None:
    work: Mapping[str, Callable[[dict[str, Any], Counted], None]] = {
        "produce": librdkafka_produces, "fetch": librdkafka_fetches, "request": librdkafka_asks,
    }  # fmt: skip
    times = counted[0][1].times
    time.sleep(max(0.0, times.begin_s - time.time()))
    for load, got in counted:
        settings = {"bootstrap.servers": servers, "client.id": load.client_id, "log_level": 0}
        threading.Thread(target=work[load.role], args=(settings, got), daemon=True).start()
    time.sleep(max(0.0, times.until_s - time.time()))


def librdkafka_produces(settings: dict[str, Any], got: Counted) -> None:
    limits = {"acks": 1, "batch.size": 16_384, "queue.buffering.max.messages": 30}
    producer, value = LibrdkafkaProducer({**settings, **limits}), bytes(SIZE)

    def acknowledged(error: Any, _: Any) -> None:
        if error is None:
            got.add(SIZE)

    while not got.is_over:
        try:
            producer.produce(TOPIC, value, partition=1, on_delivery=acknowledged)
        except BufferError:
            producer.poll(0.5)


def librdkafka_fetches(settings: dict[str, Any], got: Counted) -> None:
    limits = {
        "group.id": "none", "message.max.bytes": 32_768, "fetch.message.max.bytes": 32_768,
        "fetch.max.bytes": 32_768, "queued.min.messages": 1, "fetch.queue.backoff.ms": 10,
    }  # fmt: skip
    consumer = LibrdkafkaConsumer({**settings, **limits})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    while not got.is_over:
        message = consumer.poll(0.5)
        if message is None or message.error() is not None:
            continue
        got.add(len(message.value()))
        if message.offset() == TOPIC_RECORDS - 1:
            consumer.seek(TopicPartition(TOPIC, 0, 0))


def librdkafka_asks(settings: dict[str, Any], got: Counted) -> None:
    admin = AdminClient(settings)

    def ask() -> None:
        while not got.is_over:
            try:
                admin.list_topics(TOPIC, timeout=30)
            except KafkaException:
                continue
            got.add(1)

    for _ in range(ASKED_AT_ONCE):
        threading.Thread(target=ask, daemon=True).start()


async def ottlas_loads(servers: str, counted: Sequence[tuple[Load, Counted]]) -> None:
    work = {"produce": ottla_produces, "fetch": ottla_fetches, "request": ottla_asks}
    times = counted[0][1].times
    await asyncio.sleep(max(0.0, times.begin_s - time.time()))
    try:
        async with asyncio.timeout(times.until_s - time.time()), asyncio.TaskGroup() as tasks:
            for load, got in counted:
                tasks.create_task(work[load.role](servers, load.client_id, got))
    except TimeoutError:
        return


async def ottla_produces(servers: str, client_id: str, got: Counted) -> None:
    settings: dict[str, Any] = {"client_id": client_id, "acks": 1, "batch_size": 16_384}
    value = bytes(SIZE)
    async with Producer(servers, buffer_memory=300_000, max_block_ms=600_000, **settings) as producer:
        while not got.is_over:
            acknowledged = await producer.send(TOPIC, value, partition=1)
            acknowledged.add_done_callback(lambda done: None if done.exception() else got.add(SIZE))


async def ottla_fetches(servers: str, client_id: str, got: Counted) -> None:
    settings: dict[str, Any] = {"client_id": client_id, "auto_offset_reset": "earliest"}
    limits: dict[str, Any] = {"max_partition_fetch_bytes": 32_768, "fetch_max_bytes": 32_768}
    async with Consumer(bootstrap_servers=servers, **settings, **limits) as consumer:
        consumer.assign([(TOPIC, 0)])
        async for record in consumer:
            got.add(len(record.value))
            if record.offset == TOPIC_RECORDS - 1:
                consumer.seek((TOPIC, 0), 0)


async def ottla_asks(servers: str, client_id: str, got: Counted) -> None:
    async with Cluster(servers, ClientConfig(client_id=client_id)) as cluster, asyncio.TaskGroup() as tasks:

        async def ask() -> None:
            while not got.is_over:
                await cluster.refresh([TOPIC])
                got.add(1)

        for _ in range(ASKED_AT_ONCE):
            tasks.create_task(ask())


def start_load(kind: str, servers: str, times: Times, folder: Path) -> subprocess.Popen[str]:
    """Start the process of a kind of clients."""
    if kind == "java":
        class_path = kafka_clients(KAFKA_3)
        classes = compile_program(PROGRAM, class_path)
        clock = [str(int(at_s * 1000)) for at_s in times]
        command = [
            "java", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            "-cp", f"{classes}{os.pathsep}{class_path}", PROGRAM.stem, servers, *clock, str(SIZE),
            *(f"{load.role},{load.client_id},{TOPIC}" for load in loads_of(kind)),
        ]  # fmt: skip
    else:
        command = [sys.executable, __file__, "--load", kind, servers, *map(str, times)]
    with (folder / f"{kind}.errors").open("w") as errors:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)


# ---- brokers, and the request time of their clients in percent, as they count it


class Limiting(NamedTuple):
    """A broker, and a function that waits for the mean request time of each client between two times."""

    broker: Contender
    request_times: Callable[[Times], dict[str, float]]


_REQUEST_TIME: Final = re.compile(
    r'^kafka_server_request_request_time\{client_id="([^"]+)".*\} (\S+)$', re.MULTILINE
)


def ottlas_request_times(port: int, times: Times) -> dict[str, float]:
    seen: dict[str, list[float]] = defaultdict(list)
    time.sleep(max(0.0, times.from_s - time.time()))
    while time.time() < times.until_s:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
            for client_id, percent in _REQUEST_TIME.findall(page.read().decode()):
                seen[client_id].append(float(percent))
        time.sleep(1)
    return {client_id: statistics.fmean(percents) for client_id, percents in seen.items()}


@contextmanager
def limiting_ottla(folder: Path, settings: Mapping[str, str]) -> Iterator[Limiting]:
    port = free_port()
    with ottla(folder, {**settings, "metrics.port": str(port)}) as broker:
        yield Limiting(broker, partial(ottlas_request_times, port))


def kafkas_request_times(port: int, times: Times) -> dict[str, float]:
    clock = [str(int(at_s * 1000)) for at_s in times[1:]]
    lines = run_program(BEANS, kafka_clients(KAFKA_3), str(port), *clock, timeout_s=900).splitlines()
    return {client_id: float(mean) for client_id, mean in map(str.split, lines)}


@contextmanager
def limiting_kafka(folder: Path, settings: Mapping[str, str]) -> Iterator[Limiting]:
    port = free_port()
    beans = [
        f"-Dcom.sun.management.jmxremote.port={port}", f"-Dcom.sun.management.jmxremote.rmi.port={port}",
        "-Dcom.sun.management.jmxremote.authenticate=false", "-Dcom.sun.management.jmxremote.ssl=false",
        "-Dcom.sun.management.jmxremote.host=127.0.0.1", "-Djava.rmi.server.hostname=127.0.0.1",
    ]  # fmt: skip
    with ApacheKafka(folder / "kafka", settings, jvm_options=beans) as kafka:
        broker = Contender("kafka 3.9", kafka.bootstrap_servers, kafka.pid, kafka.data_dir / "data")
        yield Limiting(broker, partial(kafkas_request_times, port))


# ---- what is measured


class Figures(NamedTuple):
    """The figures of one broker."""

    parts: dict[str, float]
    """Of each client id: the part of its quota that it got."""
    quiet_ms: list[float]
    """Times to an acknowledgement of the client without a quota, before the others began."""
    loaded_ms: list[float]
    """The same while they were counted."""
    elsewhere_ms: list[float]
    """The same meanwhile, at an idle broker on the machine: what the other clients' own work costs it."""


async def prepare(servers: str) -> None:
    """Fill the topic that is fetched, and set all quotas."""
    async with Admin(servers) as admin:
        await admin.topics.create(TOPIC, partitions=3, replication_factor=1)
        for (role, sharing), limit in LIMITS.items():
            for kind in KINDS:
                for client_id in set(client_ids(kind, role, sharing)):
                    await admin.quotas.alter({CLIENT_ID: client_id}, {ROLES[role]: limit})
    async with Producer(servers, batch_size=16_384) as producer:
        for _ in range(TOPIC_RECORDS):
            await producer.send(TOPIC, bytes(SIZE), partition=0)


def acknowledged_in_ms(servers: str, from_s: float, until_s: float) -> list[float]:
    """Produce small records at a steady rate; return the time to each acknowledgement."""
    producer = LibrdkafkaProducer({"bootstrap.servers": servers, "linger.ms": 0, "acks": 1, "log_level": 0})
    taken: list[float] = []

    def send() -> None:
        begun = time.perf_counter()

        def acknowledged(error: Any, _: Any) -> None:
            if error is None:
                taken.append((time.perf_counter() - begun) * 1000)

        producer.produce(
            TOPIC,
            bytes(200),
            partition=2,
            on_delivery=acknowledged,
        )

    send()
    producer.flush(30)
    taken.clear()
    for number in range(int((until_s - from_s) * PROBES_PER_S)):
        while (left_s := from_s + number / PROBES_PER_S - time.time()) > 0:
            producer.poll(left_s)
        send()
    producer.flush(30)
    return taken


def measure(limiting: Limiting, idle: Contender, folder: Path, windows: int, seconds: float) -> Figures:
    servers = limiting.broker.bootstrap_servers
    asyncio.run(prepare(servers))
    quiet(limiting.broker)
    quiet_ms = acknowledged_in_ms(servers, time.time(), time.time() + QUIET_S)
    begin_s = time.time() + STARTING_S
    from_s = begin_s + windows + SETTLING_S
    times = Times(begin_s, from_s, from_s + seconds)
    with ThreadPoolExecutor(2) as threads:
        loads = [start_load(kind, servers, times, folder) for kind in KINDS]
        percents = threads.submit(limiting.request_times, times)
        elsewhere = threads.submit(acknowledged_in_ms, idle.bootstrap_servers, *times[1:])
        loaded_ms = acknowledged_in_ms(servers, times.from_s, times.until_s)
        got = dict(percents.result())
        for load in loads:
            output, _ = load.communicate(timeout=60)
            for client_id, amount in map(str.split, output.splitlines()):
                if "-request-" not in client_id:
                    got[client_id] = got.get(client_id, 0) + int(amount) / seconds
    limits = dict(limits_by_client_id())
    parts = {client_id: got.get(client_id, 0) / limit for client_id, limit in limits.items()}
    return Figures(parts, quiet_ms, loaded_ms, elsewhere.result())


def limits_by_client_id() -> Iterator[tuple[str, float]]:
    for (role, sharing), limit in LIMITS.items():
        for kind in KINDS:
            for client_id in set(client_ids(kind, role, sharing)):
                yield client_id, limit


def shown(parts: Sequence[float]) -> str:
    """Write the part of a quota, or the mean of several, with the least and the largest."""
    if len(parts) == 1:
        return f"{parts[0]:.3f}"
    return f"{statistics.fmean(parts):.3f} ({min(parts):.3f}-{max(parts):.3f})"


def percentile_99(taken_ms: Sequence[float]) -> str:
    return f"{statistics.quantiles(taken_ms, n=100)[98]:.2f} ms"


def report(figures: Mapping[str, Figures]) -> None:
    names = list(figures)
    rows = []
    for role in ROLES:
        for sharing in COUNTS:
            for kind in KINDS:
                ids = sorted(set(client_ids(kind, role, sharing)))
                cells = (shown([figures[name].parts[each] for each in ids]) for name in names)
                rows.append((f"{role}, {SHARINGS[sharing]}, {kind}", *cells))
    show("Rate, as a part of the quota", rows, ("clients", *names))
    rows = [
        ("before", *(percentile_99(figures[name].quiet_ms) for name in names)),
        ("beside 369 limited clients", *(percentile_99(figures[name].loaded_ms) for name in names)),
        ("beside them, at an idle broker", *(percentile_99(figures[name].elsewhere_ms) for name in names)),
    ]
    show("99th percentile of a client without a quota", rows, ("", *names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="that are counted after the first window")
    parser.add_argument("--windows", type=int, default=11, help="of a second, that a rate is measured over")
    parser.add_argument("--without-kafka", action="store_true")
    parser.add_argument("--load", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        kind, servers, *clock = options.load
        run_loads(kind, servers, Times(*map(float, clock)))
    settings = {"quota.window.num": str(options.windows), "num.partitions": "1"}
    contenders = {"ottla": limiting_ottla, "kafka 3.9": limiting_kafka}
    if options.without_kafka or not kafka_is_here():
        del contenders["kafka 3.9"]
    figures = {}
    for name, start in contenders.items():
        with (
            tempfile.TemporaryDirectory() as folder,
            start(Path(folder), settings) as limiting,
            ottla(Path(folder, "idle"), {"num.partitions": "3"}) as idle,
        ):
            asyncio.run(prepare(idle.bootstrap_servers))
            figures[name] = measure(limiting, idle, Path(folder), options.windows, options.seconds)
            print(f"  {name}: measured", flush=True)
    report(figures)


if __name__ == "__main__":
    main()
