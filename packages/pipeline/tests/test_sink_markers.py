"""The last batch that each task of a query wrote."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.pipeline.sink.errors import MarkersUnreadable, StaleBatch
from ottla.pipeline.sink.markers import Marker, MarkerLog, decoded, is_begun, is_written, missing_task
from ottla.pipeline.sink.tasks import TaskIdentity
from ottla.protocol.records import BatchBuilder, ControlType, end_transaction_marker

KEY = b"q/0"


class Log:
    """A log of markers as brokers store it."""

    def __init__(self) -> None:
        self.data = b""
        self.end = 0

    def write(self, producer_id: int, key: bytes, marker: Marker | None) -> None:
        builder = BatchBuilder(max_bytes=1_000)
        builder.append(key, None if marker is None else marker.encoded(TaskIdentity("q", marker.batch, 0)), 0)
        self._add(
            builder.build(
                base_offset=self.end,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                transactional=producer_id >= 0,
            )
        )

    def finish(self, producer_id: int, kind: ControlType) -> None:
        self._add(
            end_transaction_marker(
                kind,
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp_ms=0,
                base_offset=self.end,
            )
        )

    def _add(self, batch: bytes) -> None:
        self.data += batch
        self.end += 1


def taken(log: Log) -> MarkerLog:
    marker_log = MarkerLog()
    marker_log.take(log.data)
    return marker_log


def test_a_marker_counts_once_its_transaction_is_committed() -> None:
    log = Log()
    log.write(1, KEY, Marker(7, 100, "run"))
    assert taken(log).of("q") == {}

    log.finish(1, ControlType.COMMIT)

    assert taken(log).of("q") == {0: Marker(7, 100, "run")}


def test_a_marker_of_a_transaction_that_was_aborted_does_not_count() -> None:
    log = Log()
    log.write(1, KEY, Marker(7, 100, "run"))
    log.finish(1, ControlType.ABORT)

    assert taken(log).of("q") == {}


def test_a_transaction_of_another_that_is_open_hides_nothing() -> None:
    log = Log()
    log.write(2, b"q/1", Marker(7, 1, "run"))  # of a task that was killed: it stays open for minutes
    log.write(1, KEY, Marker(7, 100, "run"))
    log.finish(1, ControlType.COMMIT)

    assert taken(log).of("q") == {0: Marker(7, 100, "run")}


def test_a_record_without_a_value_deletes_a_marker() -> None:
    log = Log()
    log.write(1, KEY, Marker(0, 100, "run"))
    log.finish(1, ControlType.COMMIT)
    log.write(-1, KEY, None)

    assert taken(log).of("q") == {}


def test_a_truncated_batch_at_the_end_is_read_again() -> None:
    log = Log()
    log.write(1, KEY, Marker(7, 100, "run"))
    log.finish(1, ControlType.COMMIT)
    marker_log = MarkerLog()

    marker_log.take(log.data[:-10])
    assert (marker_log.next_offset, marker_log.of("q")) == (1, {})
    marker_log.take(log.data)

    assert (marker_log.next_offset, marker_log.of("q")) == (2, {0: Marker(7, 100, "run")})


def test_a_foreign_record_among_markers_is_not_skipped() -> None:
    with pytest.raises(MarkersUnreadable, match=r"markers\.topic"):
        decoded(b"one coffee")
    with pytest.raises(MarkersUnreadable):
        decoded(b'{"batch": 1}')
    assert decoded(Marker(1, 2, "run").encoded(TaskIdentity("q", 1, 0))) == Marker(1, 2, "run")


def test_a_marker_that_does_not_say_its_run_is_of_an_earlier_one() -> None:
    found = decoded(b'{"query": "q", "partition": 0, "batch": 7, "rows": 100}')

    assert found == Marker(7, 100, "")
    assert is_begun({0: found}, 7, "run")


def test_a_key_of_something_else_is_not_passed_over() -> None:
    log = Log()
    log.write(-1, b"josef", Marker(7, 100, "run"))

    with pytest.raises(MarkersUnreadable, match=r"markers\.topic"):
        taken(log)


def test_markers_are_those_of_one_query() -> None:
    log = Log()
    log.write(-1, b"q/bills/0", Marker(7, 100, "run"))
    log.write(-1, b"q/1", Marker(8, 200, "run"))

    assert taken(log).of("q/bills") == {0: Marker(7, 100, "run")}
    assert taken(log).of("q") == {1: Marker(8, 200, "run")}
    assert taken(log).of("r") == {}


def test_a_batch_is_written_when_its_marker_is_there() -> None:
    task = TaskIdentity("q", 7, 0)

    assert not is_written({}, task)
    assert not is_written({0: Marker(6, 1, "run"), 1: Marker(7, 1, "run")}, task)
    assert is_written({0: Marker(7, 1, "run")}, task)


@pytest.mark.parametrize("task", [0, 1])
def test_a_batch_before_one_that_any_task_has_begun_is_refused(task: int) -> None:
    with pytest.raises(StaleBatch, match="batch 7 of query q was replayed after batch 8 was written"):
        is_written({task: Marker(8, 1, "run")}, TaskIdentity("q", 7, 0))


def test_a_batch_is_begun_when_another_run_wrote_some_of_it() -> None:
    known = {0: Marker(6, 1, "before"), 1: Marker(7, 1, "now")}
    assert not is_begun(known, 7, "now")
    known[2] = Marker(7, 1, "before")
    assert is_begun(known, 7, "now")


def test_a_task_is_missing_that_wrote_and_is_not_there_any_more() -> None:
    known = {0: Marker(7, 1, "run"), 3: Marker(7, 1, "run"), 5: Marker(6, 1, "run")}

    assert missing_task(known, 7, range(4)) is None
    assert missing_task(known, 7, range(3)) == 3


steps = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["write", ControlType.COMMIT, ControlType.ABORT])),
    max_size=40,
)


@settings(deadline=None)
@given(steps, st.data())
def test_any_interleaving_of_transactions_taken_in_any_pieces_gives_what_was_committed_last(
    given_steps: list[tuple[int, str | ControlType]], data: st.DataObject
) -> None:
    log, pending, expected = Log(), {}, {}  # type: Log, dict[int, Marker], dict[int, Marker]
    for number, (producer, step) in enumerate(given_steps):
        if not isinstance(step, ControlType):
            # A task has one transaction at a time; of two markers in it, the last counts.
            pending[producer] = Marker(number, number, "run")
            log.write(producer, b"q/%d" % producer, pending[producer])
            continue
        log.finish(producer, step)
        marker = pending.pop(producer, None)
        if marker is not None and step is ControlType.COMMIT:
            expected[producer] = marker

    marker_log, cut = MarkerLog(), data.draw(st.integers(0, len(log.data)))
    marker_log.take(log.data[:cut])
    marker_log.take(log.data)

    assert (marker_log.of("q"), marker_log.next_offset) == (expected, log.end)
