from __future__ import annotations

import io

import pytest

from ottla.producer.cli import CHUNK_BYTES, _chunks


def test_lines_come_without_their_ends() -> None:
    files = (io.BytesIO(b"a\nb\r\n"), io.BytesIO(b"\nlast"))

    assert [line for chunk in _chunks(files, 100) for line in chunk] == [b"a", b"b", b"", b"last"]


def test_a_line_that_no_record_can_hold_is_not_read_to_its_end() -> None:
    endless = io.BytesIO(b"x" * 10 * CHUNK_BYTES)

    with pytest.raises(ValueError, match="longer than a record"):
        list(_chunks((endless,), CHUNK_BYTES))
    assert endless.tell() <= 2 * CHUNK_BYTES
