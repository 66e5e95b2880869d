"""The order of a search, the records of a tail that a page cannot show, files, and two records compared."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.console.records.comparing import compared, paired
from ottla.console.records.exporting import CsvWriter, JsonLinesWriter, record_writer, safe_cell
from ottla.console.records.filters import CompiledFilter, Filter
from ottla.console.records.masking import HIDDEN, Mask
from ottla.console.records.reading import ShownRecord
from ottla.console.records.scanning import (
    FAR_BYTES,
    MOST_PAUSE_S,
    NEAR_BYTES,
    Batches,
    Pace,
    Scan,
    ScanPlan,
    Span,
    TimeMerge,
    Window,
    batches,
    look_through,
)
from ottla.console.records.search_process import cut, uncut
from ottla.console.records.tailing import TailWindow
from ottla.console.web.streams import StreamedResponse, attachment, event
from ottla.protocol.records import BatchBuilder, Codec, CorruptRecords


def log(stamps: list[int], *, codec: Codec = Codec.NONE, per_batch: int = 3, pad: bytes = b"") -> list[bytes]:
    """Return batches with a record for each time; record n has the value n, and the padding."""
    found = []
    for first in range(0, len(stamps), per_batch):
        builder = BatchBuilder(1 << 20, codec=codec)
        for at, stamp in enumerate(stamps[first : first + per_batch], first):
            builder.append(b"k", b"%d" % at + pad, stamp)
        found.append(builder.build(base_offset=first))
    return found


class Logs:
    """Partitions in memory, read a batch at a time."""

    def __init__(self, logs: dict[int, list[bytes]]) -> None:
        self.logs = logs

    async def read(self, partition: int, offset: int, most_bytes: int) -> Batches | None:
        for data in self.logs[partition]:
            found = batches(data)
            if found is not None and found.after > offset:
                return found
        return None


async def searched(
    logs: dict[int, list[int]], most: int, *, newest_first: bool, chosen: Filter | None = None
) -> list[tuple[int, int]]:
    """Return partition and offset of that which a search finds, in its order."""
    source = Logs({index: log(stamps) for index, stamps in logs.items()})
    ends = {index: len(stamps) for index, stamps in logs.items()}
    plan = ScanPlan(dict.fromkeys(logs, 0), ends, newest_first=newest_first)
    merge, passes = TimeMerge(plan.left, most, newest_first=newest_first), CompiledFilter(chosen or Filter())
    found: list[tuple[int, int]] = []

    async def look(window: Window) -> bool:
        merge.add(look_through(window, passes).found)
        merge.reached(window.span.partition, window.edge_ms, is_last=window.is_last)
        found.extend((record.partition, record.offset) for record in merge.ready())
        return merge.left > 0

    await Scan(source, plan, look, newest_first=newest_first).run()
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 40), max_size=30), min_size=1, max_size=4),
    st.integers(1, 20),
    st.booleans(),
)
def test_records_are_found_in_the_order_of_their_times(
    steps: list[list[int]], most: int, newest_first: bool
) -> None:
    logs = {index: [sum(part[: at + 1]) for at in range(len(part))] for index, part in enumerate(steps)}
    everything = [(stamp, index, at) for index, stamps in logs.items() for at, stamp in enumerate(stamps)]

    found = asyncio.run(searched(logs, most, newest_first=newest_first))

    times = [logs[index][at] for index, at in found]
    assert times == sorted((stamp for stamp, _, _ in everything), reverse=newest_first)[:most]
    assert len(set(found)) == len(found)


async def test_a_search_reads_no_more_than_it_must() -> None:
    reads = []

    class Counting(Logs):
        async def read(self, partition: int, offset: int, most_bytes: int) -> Batches | None:
            reads.append(offset)
            return await super().read(partition, offset, most_bytes)

    plan = ScanPlan({0: 0}, {0: 3_000}, newest_first=True)
    source = Counting({0: log(list(range(3_000)), per_batch=500)})

    async def enough(_: Window) -> bool:
        return False

    await Scan(source, plan, enough, newest_first=True).run()
    assert min(reads) >= 500


def test_a_search_asks_a_near_broker_for_little_at_once_and_a_far_one_for_more() -> None:
    near, far, farthest = Pace(), Pace(), Pace()
    assert near.fetch_bytes == NEAR_BYTES
    for pace, took_s in ((near, 0.001), (far, 0.02), (farthest, 0.3)):
        assert pace.pause_s(took_s) == 0

    assert [pace.fetch_bytes for pace in (near, far, farthest)] == [NEAR_BYTES, 4 * NEAR_BYTES, FAR_BYTES]


def test_a_search_waits_while_answers_take_several_times_the_best() -> None:
    pace = Pace()

    pauses = [pace.pause_s(took_s) for took_s in (0.002, 0.006, 0.018, 0.002, 9.0)]

    assert pauses == pytest.approx([0, 0, 0.01, 0, MOST_PAUSE_S])


def test_a_search_does_not_wait_for_its_own_work() -> None:
    now_s, used_s = iter([100.0, 100.5, 200.0, 200.5]), iter([7.0, 7.49, 8.0, 8.01])
    pace = Pace(lambda: next(used_s))

    pauses = [pace.pause_s(0.001), *(pace.pause_s(*pace.stopwatch(lambda: next(now_s))()) for _ in range(2))]

    assert pauses == pytest.approx([0, 0.006, MOST_PAUSE_S])


async def test_each_answer_of_a_search_sets_its_pace() -> None:
    asked = []

    class Counting(Logs):
        async def read(self, partition: int, offset: int, most_bytes: int) -> Batches | None:
            asked.append(most_bytes)
            return await super().read(partition, offset, most_bytes)

    class Counted(Pace):
        answers = 0

        def pause_s(self, took_s: float, worked_s: float = 0.0) -> float:
            assert took_s >= 0
            assert worked_s >= 0
            self.answers += 1
            return super().pause_s(0.001)

    plan = ScanPlan({0: 0}, {0: 3_000}, newest_first=False)
    plan.pace = pace = Counted()

    async def goes_on(_: Window) -> bool:
        return True

    await Scan(Counting({0: log(list(range(3_000)), per_batch=500)}), plan, goes_on, newest_first=False).run()
    assert pace.answers == len(asked) == 6
    assert set(asked) == {NEAR_BYTES}


def test_a_long_search_takes_only_the_time_that_no_other_process_wants() -> None:
    program = (
        "import os, threading\n"
        "from ottla.console.records.search_process import yield_to_all\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "yield_to_all()\n"
        "print(*(os.sched_getscheduler(int(name)) for name in os.listdir('/proc/self/task')), flush=True)\n"
        "os._exit(0)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert set(found.stdout.split()) == {str(os.SCHED_IDLE)}
    assert len(found.stdout.split()) >= 2


async def test_a_search_back_from_the_newest_reads_little_twice() -> None:
    count = 10_000
    every = log(list(range(count)), per_batch=50, pad=b" " * 1_000)
    read_bytes = list[int]()

    class Generous:
        async def read(self, partition: int, offset: int, most_bytes: int) -> Batches | None:
            first = offset // 50
            chosen = every[first : first + max(1, most_bytes // len(every[first]))]
            read_bytes.append(sum(map(len, chosen)))
            return batches(b"".join(chosen))

    plan = ScanPlan({0: 0}, {0: count}, newest_first=True)
    seen = list[int]()

    async def look(window: Window) -> bool:
        seen.append(look_through(window, CompiledFilter(Filter())).records)
        return True

    await Scan(Generous(), plan, look, newest_first=True).run()
    assert sum(seen) == count
    assert len(read_bytes) < 60
    assert sum(read_bytes) < 1.5 * sum(map(len, every))


def test_batches_that_cannot_match_are_counted_and_not_unfolded() -> None:
    data = b"".join(log(list(range(90)), per_batch=30))
    broken = bytearray(data)
    broken[len(data) // 3 + 61] = 0x7F  # the length of the first record of the second batch
    found = batches(bytes(broken))
    assert found is not None

    window = Window(Span(0, 0, 90), [found])

    looked = look_through(window, CompiledFilter(Filter(text="89")))
    with pytest.raises(CorruptRecords):
        look_through(window, CompiledFilter(Filter(text="59")))

    assert (looked.records, [record.offset for record in looked.found]) == (90, [89])


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_compressed_batches_are_searched_as_others(codec: Codec) -> None:
    found = batches(b"".join(log(list(range(90)), codec=codec, per_batch=30)))
    assert found is not None

    looked = look_through(Window(Span(0, 10, 80), [found]), CompiledFilter(Filter(text="7", place="value")))

    assert looked.records == 70
    assert [record.offset for record in looked.found] == [17, 27, 37, 47, 57, 67, *range(70, 80)]


def test_a_filter_sees_only_that_which_its_viewer_may_see() -> None:
    builder = BatchBuilder()
    builder.append(b"k", b'{"name": "anna", "n": 1}', 1)
    found = batches(builder.build())
    assert found is not None
    window, mask = Window(Span(0, 0, 1), [found]), Mask(fields=("name",))

    for chosen in (
        Filter(text="anna"),
        Filter(expression="value.name == 'anna'"),
        Filter(text="anna", how="matches"),
    ):
        assert len(look_through(window, CompiledFilter(chosen)).found) == 1
        assert look_through(window, CompiledFilter(chosen), mask).found == []
    (seen,) = look_through(window, CompiledFilter(Filter(text=HIDDEN)), mask).found
    assert b"anna" not in (seen.value or b"")


def shown(
    offset: int, value: bytes | None = b"v", key: bytes | None = None, partition: int = 0
) -> ShownRecord:
    return ShownRecord(partition, offset, 1_767_225_600_000 + offset, key, value)


def test_a_tail_counts_what_it_leaves_out_and_names_its_offsets() -> None:
    window = TailWindow(most_waiting=3)
    window.add([shown(0), shown(7, partition=1), *[shown(offset) for offset in range(1, 5)]])

    assert window.first_waiting() == {0: 2}
    records, left_out = window.take(2)
    assert [record.offset for record in records] == [2, 3]
    assert {index: (part.first, part.last, part.count) for index, part in left_out.items()} == {
        0: (0, 1, 2), 1: (7, 7, 1),
    }  # fmt: skip
    assert window.take() == ([shown(4)], {})


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@a", "\t=1", "\r=1", "|cmd", "%0A"])
def test_no_cell_is_a_formula(text: str) -> None:
    assert safe_cell(text) == f"'{text}"
    (row,) = csv.DictReader(
        io.StringIO(CsvWriter().add([shown(0, text.encode(), text.encode())]).decode(), newline="")
    )
    assert (row["key"], row["value"]) == (f"'{text}", f"'{text}")


@given(st.binary(max_size=20) | st.none(), st.binary(max_size=20) | st.none(), st.text(max_size=5))
def test_json_lines_hold_keys_values_and_headers_as_they_are(
    key: bytes | None, value: bytes | None, name: str
) -> None:
    record = ShownRecord(3, 2**62, -1, key, value, ((name, value),))
    line = JsonLinesWriter().add([record])

    found = json.loads(line)
    assert line.count(b"\n") == 1
    assert found["offset"] == 2**62
    assert (found["value"] is None) is (value is None)
    if found["value_form"] == "text":
        assert found["value"].encode() == value
    assert found["headers"][0][2] == found["value_form"]


def test_parquet_is_written_in_groups() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    writer = record_writer("parquet")
    data = b"".join(writer.add([shown(offset, b"x" * (1 << 20))]) for offset in range(20)) + writer.end()

    file = parquet.ParquetFile(io.BytesIO(data))
    assert file.metadata.num_row_groups == 3
    assert file.read().column("offset").to_pylist() == list(range(20))


def test_a_record_of_a_frame_is_cut_and_knows_its_length() -> None:
    record = ShownRecord(0, 1, 2, b"k" * 9_000, None, (("h\udcff", b"v"),), "aborted", 7, is_masked=True)

    found, key_bytes, value_bytes = uncut(cut(record))

    assert (found.key, key_bytes, found.value, value_bytes) == (b"k" * 4_096, 9_000, None, 0)
    assert (found.headers, found.fate, found.is_masked) == ((("h\udcff", b"v"),), "aborted", True)


def test_two_records_are_compared_line_by_line() -> None:
    parts = compared(shown(0, b'{"a":1,"b":2}'), shown(0, b'{"a":1,"b":3,"c":4}'))

    assert [part.name for part in parts if part.differs] == ["Value"]
    assert ('  "a": 1,', '  "a": 1,') in parts[3].lines
    assert paired(["a", "b", "d"], ["a", "c", "x", "d"]) == [("a", "a"), ("b", "c"), (None, "x"), ("d", "d")]
    long = compared(shown(0, b"x\n" * 2_000), shown(0, b"y\n" * 2_000))
    assert not long[3].is_whole


async def streamed(response: StreamedResponse, leaves: asyncio.Event) -> list[dict[str, object]]:
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        assert isinstance(message, dict)
        sent.append(message)

    async with asyncio.timeout(30):
        await response({"type": "http", "method": "GET", "headers": []}, receive, send)
    return sent


async def test_the_source_of_an_answer_is_closed_when_the_browser_leaves() -> None:
    leaves, closed = asyncio.Event(), []

    async def parts() -> AsyncGenerator[bytes, None]:
        try:
            yield event("a", {"line": "one\ntwo"})
            leaves.set()
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    sent = await streamed(StreamedResponse(parts(), "text/event-stream"), leaves)

    assert closed == [True]
    assert sent[1]["body"] == b'event: a\ndata: {"line": "one\\ntwo"}\n\n'


async def test_an_answer_that_is_refused_before_its_first_part_says_why() -> None:
    async def parts() -> AsyncGenerator[bytes, None]:
        for part in list[bytes]():
            yield part
        raise LookupError("not now")

    response = StreamedResponse(parts(), "text/csv", refusals=(LookupError,))

    sent = await streamed(response, asyncio.Event())
    assert (sent[0]["status"], sent[1]["body"]) == (503, b"not now\n")


def test_the_name_of_a_file_cannot_end_its_header() -> None:
    hostile = 'a"; filename="run.html\r\nset-cookie: x=1\u202e.csv'

    assert attachment(hostile) == {
        "content-disposition": 'attachment; filename="a___filename__run.html__set-cookie__x_1_.csv"'
    }
