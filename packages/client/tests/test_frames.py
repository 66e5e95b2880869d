from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.frames import FrameReader, FrameTooLarge


def feed(reader: FrameReader, data: bytes, sizes: list[int]) -> list[bytes]:
    """Deliver bytes in pieces as a socket would, never more than there is space for."""
    frames: list[bytes] = []
    position, turn = 0, 0
    while position < len(data):
        space = reader.space()
        count = min(len(space), sizes[turn % len(sizes)], len(data) - position)
        space[:count] = data[position : position + count]
        frames += [bytes(frame) for frame in reader.received(count)]
        position, turn = position + count, turn + 1
    return frames


@given(
    st.lists(st.integers(0, 200_000), max_size=5),
    st.lists(st.integers(1, 70_000), min_size=1, max_size=4),
)
def test_frames_are_the_same_however_the_bytes_are_split(lengths: list[int], sizes: list[int]) -> None:
    bodies = [bytes([number + 1]) * length for number, length in enumerate(lengths)]
    data = b"".join(struct.pack(">i", len(body)) + body for body in bodies)

    assert feed(FrameReader(1 << 20), data, [max(size, 500) for size in sizes]) == bodies


def test_a_frame_handed_out_is_not_written_to_again() -> None:
    reader = FrameReader(1 << 20)
    body = b"a" * (65_536 - 4)
    space = reader.space()
    space[:] = struct.pack(">i", len(body)) + body

    (frame,) = reader.received(len(space))
    reader.space()[:4] = b"zzzz"

    assert bytes(frame) == body


@pytest.mark.parametrize("length", [-1, 101, 0x7FFFFFFF])
def test_a_length_out_of_bounds_is_refused_before_memory_is_taken(length: int) -> None:
    reader = FrameReader(100)
    reader.space()[:4] = struct.pack(">i", length)

    with pytest.raises(FrameTooLarge):
        reader.received(4)


def large(reader: FrameReader, size: int, fill: bytes) -> memoryview:
    data = struct.pack(">i", size) + fill * size
    frames: list[memoryview] = []
    position = 0
    while position < len(data):
        space = reader.space()
        count = min(len(space), len(data) - position)
        space[:count] = data[position : position + count]
        frames += reader.received(count)
        position += count
    (frame,) = frames
    return frame


def test_memory_of_large_frames_is_reused_but_never_while_a_view_is_left() -> None:
    reader = FrameReader(1 << 24)
    first = large(reader, 300_000, b"a")
    part = first[1000:2000]
    second = large(reader, 300_000, b"b")
    assert first.obj is not second.obj
    memory = first.obj
    first.release()
    third = large(reader, 200_000, b"c")
    assert third.obj is not memory
    assert bytes(part) == b"a" * 1000
    part.release()

    fourth = large(reader, 250_000, b"d")

    assert fourth.obj is memory
    assert [bytes(each) for each in (second, third, fourth)] == [
        b"b" * 300_000,
        b"c" * 200_000,
        b"d" * 250_000,
    ]


def test_memory_of_large_frames_is_freed_after_many_small_ones() -> None:
    reader = FrameReader(1 << 24)
    large(reader, 300_000, b"a").release()
    assert reader._receive_buffers._buffers

    for _ in range(100):
        space = reader.space()
        space[:5] = struct.pack(">i", 1) + b"x"
        reader.received(5)

    assert not reader._receive_buffers._buffers
