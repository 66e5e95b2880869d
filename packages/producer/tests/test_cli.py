from __future__ import annotations

import io

import pytest

from ottla.producer.cli import CHUNK_BYTES, Input, _keys_and_values, chunks_of


def test_lines_come_without_their_ends() -> None:
    files = (io.BytesIO(b"a\nb\r\n"), io.BytesIO(b"\nlast"))

    assert [line for chunk in chunks_of(files, 100) for line in chunk.lines] == [b"a", b"b", b"", b"last"]


def test_lines_are_numbered_over_all_reads() -> None:
    file = io.BytesIO(b"x" * (CHUNK_BYTES - 1) + b"\nsecond\nthird")

    assert [(each.first_number, len(each.lines)) for each in chunks_of([file], CHUNK_BYTES)] == [
        (1, 1), (2, 1), (3, 1),
    ]  # fmt: skip


def test_a_line_that_no_record_can_hold_is_not_read_to_its_end() -> None:
    endless = io.BytesIO(b"x" * 10 * CHUNK_BYTES)

    with pytest.raises(ValueError, match="line 1 is longer than a record"):
        list(chunks_of((endless,), CHUNK_BYTES))
    assert endless.tell() <= 2 * CHUNK_BYTES


async def test_input_gives_what_was_read_and_then_its_error() -> None:
    class Torn(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            if not data:
                raise OSError("the disk is gone")
            return data

    async with Input([Torn(b"a\nb\n")], 100) as given:
        assert (found := await given.next()) is not None
        assert found.lines == [b"a", b"b"]
        with pytest.raises(ValueError, match="the input cannot be read: the disk is gone"):
            await given.next()


def test_a_null_marker_makes_tombstones() -> None:
    lines = [b"k\tNULL", b"NULL\tv"]
    assert _keys_and_values(lines, separator=b"\t", null=b"NULL") == ([b"k", None], [None, b"v"], None)
    assert _keys_and_values([b"NULL"], separator=None, null=b"NULL") == (None, [None], None)
    assert _keys_and_values([b"a:NULL"], separator=b":", null=None) == ([b"a"], [b"NULL"], None)


def test_lines_before_one_without_separator_are_records() -> None:
    found = _keys_and_values([b"k:v", b"none", b"l:w"], separator=b":", null=None)
    assert found == ([b"k"], [b"v"], "there is no key separator ':' in 'none'")
