"""The process of one search, tail or export: reads its job from its input, writes frames to its output.

It is bounded by the kernel: memory, CPU time, and time on the clock. It ends when its input is closed, which
happens however the console ends. Its job is pickled, as it comes from the console; its frames are msgpack, as
they hold that which others wrote.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
import signal
import struct
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Final, Literal, NoReturn

import msgpack

from ottla.admin import Admin
from ottla.client.config import ClientConfig
from ottla.client.errors import ClientError
from ottla.console.records.exporting import record_writer
from ottla.console.records.filters import CompiledFilter
from ottla.console.records.masking import Mask
from ottla.console.records.reading import Bounds, ShownRecord, bounds
from ottla.console.records.scanning import (
    ClusterSource,
    Readable,
    Scan,
    ScanPlan,
    TimeMerge,
    Window,
    look_through,
)
from ottla.console.records.tailing import LeftOut, Tail, pass_on
from ottla.console.records.wanted import Wanted
from ottla.console.registry.searching import AskSchema, BySchema, SentSchema
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition

JobKind = Literal["search", "tail", "export"]
LENGTH: Final = struct.Struct(">I")
MOST_VALUE_BYTES: Final = 16 << 10
"""As much of a found value goes to the console; the record's own page reads the rest."""
_MOST_KEY_BYTES: Final = 4 << 10
_MOST_HEADERS: Final = 50
_PROGRESS_S: Final = 0.25
_SCHEMA_S: Final = 30.0
_TAIL_PROGRESS_S: Final = 2.0
NICENESS: Final = 19
"""A search, a tail or an export stands behind the other processes of its machine."""
_SHORT_BYTES: Final = 16 << 20
"""A search that reads more is a long one, and takes only the time that no other process wants."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one process."""

    memory_bytes: int = 1 << 30
    cpu_s: int = 900
    wall_s: int = 3_600


@dataclass(frozen=True, slots=True)
class Job:
    """A search, tail or export: of which records, for whom, and within which limits."""

    kind: JobKind
    servers: str
    config: ClientConfig = field(repr=False)
    topic: str
    partitions: tuple[int, ...]
    wanted: Wanted
    mask: Mask = field(default_factory=Mask)
    has_registry: bool = False
    """Whether the console answers `schema` frames."""
    most: int = 100
    file_format: str = "csv"
    positions: Mapping[int, int] = field(default_factory=dict)
    """Where a tail goes on; partitions that are not named begin at their end."""
    limits: Limits = field(default_factory=Limits)


@dataclass(slots=True)
class Counts:
    """How far a search is."""

    offsets: int = 0
    offsets_read: int = 0
    records: int = 0
    found: int = 0

    def frame(self, undecided: int) -> dict[str, Any]:
        """Return it as a frame."""
        return {
            "kind": "progress", "offsets": self.offsets, "offsets_read": self.offsets_read,
            "records": self.records, "found": self.found, "undecided": undecided,
        }  # fmt: skip


class FramePipe:
    """Writes frames, each when the one before it is taken: a slow page slows the search down."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._packer = msgpack.Packer()
        self._turn = asyncio.Lock()

    async def send(self, frame: Mapping[str, Any]) -> None:
        """Write one frame."""
        data = self._packer.pack(frame)
        async with self._turn:
            await asyncio.to_thread(self._write, data)

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]


Send = Callable[[Mapping[str, Any]], Coroutine[Any, Any, None]]


async def perform(job: Job, send: Send, by_schema: BySchema | None = None) -> None:
    """Do a job. Raises ClientError, KafkaError, Unclear, FormatMissing."""
    passes = CompiledFilter(job.wanted.filter, None if by_schema is None else by_schema.text)
    readable = None if by_schema is None else by_schema.readable
    async with Admin(job.servers, job.config) as admin:
        match job.kind:
            case "tail":
                await _tail(admin, job, passes, send, readable)
            case "export":
                await Export(job, passes, send, readable).run(admin)
            case _:
                await Search(job, passes, send, readable).run(admin)


class Search:
    """Finds records in the order of their times, and counts."""

    def __init__(
        self, job: Job, passes: CompiledFilter, send: Send, readable: Readable | None = None
    ) -> None:
        self.counts = Counts()
        self._readable = readable
        self._job = job
        self._passes = passes
        self._send = send
        self._merge = TimeMerge((), 0, newest_first=True)
        self._told_s = 0.0
        self._short_bytes_left = _SHORT_BYTES

    async def run(self, admin: Admin) -> None:
        """Search all offsets that are wanted."""
        wanted, job = self._job.wanted, self._job
        known = await _bounds(admin, job)
        self.counts.offsets = sum(max(0, known.ends[index] - start) for index, start in known.starts.items())
        plan = ScanPlan(known.starts, known.ends, newest_first=wanted.newest_first)
        self._merge = TimeMerge(plan.left, job.most, newest_first=wanted.newest_first)
        source = ClusterSource(admin.cluster, job.topic)
        await self._tell(0)
        await Scan(source, plan, self._look, newest_first=wanted.newest_first).run()
        await self._send(self.counts.frame(self._passes.undecided))

    async def _look(self, window: Window) -> bool:
        self._yield_if_long(sum(len(part.data) for part in window.parts))
        looked = await asyncio.to_thread(look_through, window, self._passes, self._job.mask, self._readable)
        self.counts.offsets_read += window.span.end - window.span.start
        self.counts.records += looked.records
        self.counts.found += len(looked.found)
        goes_on = await self._take(window, looked.found)
        await self._tell(_PROGRESS_S)
        return goes_on

    def _yield_if_long(self, read_bytes: int) -> None:
        is_short, self._short_bytes_left = self._short_bytes_left > 0, self._short_bytes_left - read_bytes
        if is_short and self._short_bytes_left <= 0:
            yield_to_all()

    async def _take(self, window: Window, found: list[ShownRecord]) -> bool:
        self._merge.add(found)
        self._merge.reached(window.span.partition, window.edge_ms, is_last=window.is_last)
        if ready := self._merge.ready():
            await self._send({"kind": "found", "records": [cut(record) for record in ready]})
        return self._merge.left > 0 or self._job.wanted.counts_all

    async def _tell(self, every_s: float) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._told_s >= every_s:
            self._told_s = now_s
            await self._send(self.counts.frame(self._passes.undecided))


class Export(Search):
    """Writes the records that are found into a file, and never holds more than a window of them."""

    def __init__(
        self, job: Job, passes: CompiledFilter, send: Send, readable: Readable | None = None
    ) -> None:
        super().__init__(job, passes, send, readable)
        self._left = job.most
        self._writer = record_writer(job.file_format)

    async def run(self, admin: Admin) -> None:
        """Export all offsets that are wanted."""
        await super().run(admin)
        await self._send({"kind": "data", "data": self._writer.end()})

    async def _take(self, window: Window, found: list[ShownRecord]) -> bool:
        ordered = found[::-1] if self._job.wanted.newest_first else found
        chosen = ordered[: self._left]
        self._left -= len(chosen)
        data = await asyncio.to_thread(self._writer.add, chosen)
        if data:
            await self._send({"kind": "data", "data": data})
        return self._left > 0


async def _bounds(admin: Admin, job: Job) -> Bounds:
    """Return the offsets that are wanted of each partition whose leader answers."""
    wanted = job.wanted
    known = await bounds(admin, job.topic, job.partitions)
    starts, ends = dict(known.starts), dict(known.ends)
    partitions = [TopicPartition(job.topic, index) for index in starts]
    if wanted.start == "offset":
        starts = {index: max(first, wanted.offset) for index, first in starts.items()}
    if wanted.start == "time":
        found = await admin.offsets.find(dict.fromkeys(partitions, wanted.time_ms))
        starts = {index: max(starts[index], found[TopicPartition(job.topic, index)]) for index in starts}
    if wanted.until_ms is not None:
        found = await admin.offsets.find(dict.fromkeys(partitions, wanted.until_ms))
        ends = {index: min(ends[index], found[TopicPartition(job.topic, index)]) for index in ends}
    going_on = ends if wanted.newest_first else starts
    for index, at in wanted.behind:  # it is exact, and the times of records need not be in order
        if index in going_on:
            going_on[index] = max(known.starts[index], min(at, known.ends[index]))
    return Bounds(starts, ends)


async def _tail(
    admin: Admin, job: Job, passes: CompiledFilter, send: Send, readable: Readable | None
) -> None:
    known = await bounds(admin, job.topic, job.partitions)
    positions = {
        index: max(known.starts[index], min(job.positions.get(index, end), end))
        for index, end in known.ends.items()
    }
    tail = Tail(admin.cluster, job.topic, positions, passes, job.mask, readable)

    async def step(records: list[ShownRecord], left_out: dict[int, LeftOut]) -> None:
        if records or left_out:
            missed = [[index, part.first, part.last, part.count] for index, part in sorted(left_out.items())]
            shown = [cut(record) for record in records]
            await send({"kind": "found", "records": shown, "missed": missed, "resume": tail.resume})

    async def tell() -> None:
        while True:
            await send({
                "kind": "progress", "records": tail.records, "behind": tail.behind, "resume": tail.resume,
                "undecided": passes.undecided,
            })  # fmt: skip
            await asyncio.sleep(_TAIL_PROGRESS_S)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(tail.follow())
        tasks.create_task(pass_on(tail, step))
        tasks.create_task(tell())


def cut(record: ShownRecord) -> list[Any]:
    """Return a record as a frame holds it: its key and value in part, with their lengths."""
    key, value = record.key, record.value
    headers = [
        (name.encode(errors="surrogateescape"), None if data is None else data[:_MOST_KEY_BYTES])
        for name, data in record.headers[:_MOST_HEADERS]
    ]
    return [
        record.partition, record.offset, record.timestamp_ms, None if key is None else key[:_MOST_KEY_BYTES],
        None if value is None else value[:MOST_VALUE_BYTES], headers, record.fate, record.producer_id,
        record.is_masked, len(key or b""), len(value or b""),
    ]  # fmt: skip


def uncut(parts: Sequence[Any]) -> tuple[ShownRecord, int, int]:
    """Return the record of a frame, and the lengths of its key and its value."""
    *fields, key_bytes, value_bytes = parts
    fields[5] = tuple((name.decode(errors="surrogateescape"), data) for name, data in fields[5])
    return ShownRecord(*fields), key_bytes, value_bytes


# --- the process


def bound_process(limits: Limits) -> None:
    """Bound the memory, the CPU time and the time of this process; others go first."""
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limits.wall_s)
    with suppress(OSError):
        os.nice(NICENESS)


def yield_to_all() -> None:
    """Take only the time of the processors that no other process wants, where the system can (Linux).

    A process with a low priority alone keeps its processor for a few milliseconds when another one wants it.
    """
    if sys.platform != "linux":
        return
    for thread in os.listdir("/proc/self/task"):  # each has a priority of its own
        with suppress(OSError):
            os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))


def read_job(descriptor: int) -> Job:
    """Return the job that the console writes: its length, and the job."""
    (length,) = LENGTH.unpack(_read(descriptor, LENGTH.size))
    found = pickle.loads(_read(descriptor, length))
    assert isinstance(found, Job)
    return found


def _read(descriptor: int, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        part = os.read(descriptor, length - len(found))
        if not part:
            os._exit(1)
        found += part
    return bytes(found)


class SchemasOfConsole:
    """Asks the console for schemas; the answers come by the input of this process."""

    def __init__(self) -> None:
        self._answers: SimpleQueue[tuple[int | str, SentSchema | None]] = SimpleQueue()

    def asking(self, send: Send, loop: asyncio.AbstractEventLoop) -> AskSchema:
        """Return the function that asks for a schema and waits, on one thread at a time."""

        def ask(schema: int | str) -> SentSchema | None:
            asked = send({"kind": "schema", "schema": schema})
            asyncio.run_coroutine_threadsafe(asked, loop).result(_SCHEMA_S)
            try:
                while (answer := self._answers.get(timeout=_SCHEMA_S))[0] != schema:
                    pass  # that of a question that was given up
            except Empty:
                return None
            return answer[1]

        return ask

    def read(self, descriptor: int) -> NoReturn:
        """Take answers; end this process when the console closes its input, or is gone."""
        with suppress(OSError):
            while True:
                (length,) = LENGTH.unpack(_read(descriptor, LENGTH.size))
                self._answers.put(read_answer(_read(descriptor, length)))
        os._exit(1)


def packed_answer(schema: int | str, found: SentSchema | None) -> bytes:
    """Return the answer of the console to the question for a schema."""
    content: bytes = msgpack.packb((schema, found))
    return LENGTH.pack(len(content)) + content


def read_answer(content: bytes) -> tuple[int | str, SentSchema | None]:
    """Return the answer that `packed_answer` has packed."""
    schema, found = msgpack.unpackb(content, use_list=False)
    return schema, found


def _reason(error: BaseException, limits: Limits) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MemoryError):
        return f"it needs more than {limits.memory_bytes >> 20} MiB of memory"
    if isinstance(error, ClientError | KafkaError | OSError | ValueError):
        return " ".join(str(error).split()) or type(error).__name__
    return f"the search failed ({type(error).__name__}: {error})"


async def _run(job: Job, schemas: SchemasOfConsole) -> None:
    pipe = FramePipe(sys.stdout.fileno())
    by_schema = None
    if job.has_registry:
        by_schema = BySchema(schemas.asking(pipe.send, asyncio.get_running_loop()))
    try:
        await perform(job, pipe.send, by_schema)
    except Exception as error:
        await pipe.send({"kind": "failed", "reason": _reason(error, job.limits)})
    else:
        await pipe.send({"kind": "done"})


def main() -> NoReturn:
    """Do the job that stands in the input."""
    job = read_job(0)
    bound_process(job.limits)
    schemas = SchemasOfConsole()
    threading.Thread(target=schemas.read, args=(0,), daemon=True).start()
    asyncio.run(_run(job, schemas))
    os._exit(0)  # the thread waits for the console still
