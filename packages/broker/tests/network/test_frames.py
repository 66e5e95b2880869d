"""Frames of a byte stream: the compiled reader and the one in Python behave alike."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.network import _frames, _frames_py, frames
from ottla.broker.network.frames import BadFrame

LIMIT = 1 << 20
RECORDS = 7
"""The API key of requests that carry records."""
READERS = pytest.mark.parametrize("module", [_frames, _frames_py], ids=["compiled", "plain"])


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def receive(reader: Any, data: bytes) -> list[bytes]:
    """Put `data` in, as one receive or as many as the reader's memory asks for; take all frames."""
    taken: list[bytes] = []
    while data:
        room = reader.get_buffer()
        count = min(len(room), len(data))
        room[:count], data = data[:count], data[count:]
        if not reader.received(count):
            continue
        while (frame := reader.next_frame()) is not None:
            taken.append(bytes(frame))
        reader.park()
    return taken


def reader_of(
    module: Any, buffer_bytes: int = 4096, limit: int = LIMIT, other_limit: int | None = None
) -> Any:
    return module.FrameReader(module.ReceiveBuffer(buffer_bytes), limit, other_limit, frozenset({RECORDS}))


def test_the_compiled_reader_is_the_one_in_use() -> None:
    assert frames.FrameReader is _frames.FrameReader


@READERS
def test_frames_that_come_together_are_taken_one_by_one(module: Any) -> None:
    bodies = [b"x" * size for size in (8, 9, 100, 1000)]

    assert receive(reader_of(module), framed(*bodies)) == bodies


@READERS
def test_a_frame_may_come_byte_by_byte(module: Any) -> None:
    reader = reader_of(module)

    taken = [frame for byte in framed(b"12345678", b"abcdefghij") for frame in receive(reader, bytes([byte]))]

    assert taken == [b"12345678", b"abcdefghij"]
    assert reader.kept_bytes == 0


@READERS
@pytest.mark.parametrize("size", [-1, -(2**31), 0, 7, LIMIT + 1, 2**31 - 1])
def test_a_size_that_cannot_be_is_refused_before_anything_is_kept_for_it(module: Any, size: int) -> None:
    reader = reader_of(module)

    with pytest.raises(BadFrame) as refused:
        receive(reader, struct.pack(">i", size))

    assert refused.value.size == size


@READERS
def test_a_large_size_alone_takes_no_memory(module: Any) -> None:
    reader = reader_of(module, limit=100 << 20)

    receive(reader, struct.pack(">i", 100 << 20) + b"x" * 10)

    assert reader.kept_bytes == 14
    assert len(reader.get_buffer()) <= 1 << 20


@READERS
def test_two_connections_share_a_buffer_and_do_not_mix(module: Any) -> None:
    shared = module.ReceiveBuffer(64)
    one, other = module.FrameReader(shared, LIMIT), module.FrameReader(shared, LIMIT)
    first, second = framed(b"first frame"), framed(b"second frame")

    assert receive(one, first[:7]) == []
    assert receive(other, second[:9]) == []
    assert receive(one, first[7:]) == [b"first frame"]
    assert receive(other, second[9:]) == [b"second frame"]


@READERS
def test_frames_left_for_later_are_still_there(module: Any) -> None:
    reader = reader_of(module)
    data = framed(b"12345678", b"abcdefgh", b"ABCDEFGH") + b"\0\0"
    room = reader.get_buffer()
    room[: len(data)] = data
    reader.received(len(data))
    taken = bytes(reader.next_frame())
    reader.park()

    later = [bytes(reader.next_frame()), bytes(reader.next_frame())]
    reader.park()

    assert (taken, later) == (b"12345678", [b"abcdefgh", b"ABCDEFGH"])
    assert receive(reader, b"\0\x08zzzzzzzz") == [b"zzzzzzzz"]


def test_memory_of_large_frames_is_used_again_but_not_while_somebody_looks_at_it() -> None:
    shared = _frames.ReceiveBuffer(4096)
    reader = _frames.FrameReader(shared, LIMIT)

    def one_frame(filling: bytes) -> memoryview:
        data, frame = framed(filling * 500_000), None
        while frame is None:
            room = reader.get_buffer()
            count = min(len(room), len(data))
            room[:count], data = data[:count], data[count:]
            if reader.received(count):
                frame = reader.next_frame()
                reader.park()
        return frame

    held = one_frame(b"x")
    assert shared.spare_bytes == 500_004
    other = one_frame(b"y")
    assert shared.spare_bytes == 2 * 500_004
    del other
    one_frame(b"z")

    assert shared.spare_bytes == 2 * 500_004
    assert bytes(held) == b"x" * 500_000


@READERS
@settings(deadline=None)
@given(
    sizes=st.lists(st.one_of(st.integers(8, 300), st.integers(8, 300_000)), max_size=8),
    cuts=st.lists(st.integers(1, 100_000), max_size=30),
    buffer_bytes=st.sampled_from([64, 4096, 1 << 18]),
)
def test_however_a_stream_is_cut_the_same_frames_come_out(
    module: Any, sizes: list[int], cuts: list[int], buffer_bytes: int
) -> None:
    bodies = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    stream, reader = framed(*bodies), reader_of(module, buffer_bytes)

    taken, start = [], 0
    for cut in [*cuts, len(stream)]:
        taken += receive(reader, stream[start : start + cut])
        start += cut

    assert taken == bodies
    assert reader.kept_bytes == 0


@READERS
@pytest.mark.parametrize("step", [1, 3, 5, 6, 7, 5000])
def test_a_request_without_records_has_a_limit_of_its_own(module: Any, step: int) -> None:
    body = struct.pack(">h", 3) + b"x" * 300_000
    reader = reader_of(module, other_limit=200_000)

    with pytest.raises(frames.TooLarge) as refused:
        for start in range(0, 10_000, step):
            receive(reader, framed(body)[start : start + step])

    assert (refused.value.size, refused.value.limit, refused.value.api_key) == (300_002, 200_000, 3)


@READERS
def test_a_request_with_records_has_the_limit_of_all_frames(module: Any) -> None:
    body = struct.pack(">h", RECORDS) + b"x" * 300_000

    assert receive(reader_of(module, other_limit=200_000), framed(body)) == [body]


def test_the_memory_of_all_readers_is_counted_and_freed() -> None:
    buffer = _frames.ReceiveBuffer(4096)
    readers = [_frames.FrameReader(buffer, 100 << 20) for _ in range(3)]
    for reader in readers:
        receive(reader, struct.pack(">ih", 50 << 20, 0) + b"x" * (10 << 20))

    assert 30 << 20 <= buffer.held <= 60 << 20
    receive(readers[0], b"x" * ((40 << 20) - 2))
    readers[1].forget()
    assert buffer.held <= 20 << 20
    readers[2].forget()
    assert buffer.held == 0
    assert [one.kept_bytes for one in readers] == [0, 0, 0]


@READERS
def test_who_asks_for_frames_while_a_large_one_comes_in_disturbs_nothing(module: Any) -> None:
    # Requests that are answered meanwhile have the connection look for the next.
    reader, body = reader_of(module, limit=100 << 20), bytes(range(256)) * (12 << 10)
    data, taken = memoryview(framed(body)), []
    while data:
        room = reader.get_buffer()
        count = min(len(room), len(data), 100_000)
        room[:count], data = data[:count], data[count:]
        reader.received(count)
        del room
        assert reader.get_buffer()  # as an event loop does that finds nothing to read then
        if (frame := reader.next_frame()) is not None:
            taken.append(bytes(frame))
            del frame
        reader.park()

    assert taken == [body]
