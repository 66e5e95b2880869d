"""Rows of databases as records and as positions, and ids that become visible late."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.pipeline.jobs.database.followed_tables import SeenNumbers
from ottla.pipeline.jobs.database.row_values import (
    bytes_of,
    key_of,
    position_from,
    position_json,
    row_json,
    text_of,
    timestamp_ms,
)

ID = UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (datetime(2024, 5, 1, 6, 30, tzinfo=UTC), "2024-05-01T06:30:00+00:00"),
        (date(2024, 5, 1), "2024-05-01"),
        (time(6, 30), "06:30:00"),
        (timedelta(minutes=2), 120.0),
        (Decimal("12.50"), "12.50"),
        (b"\x00\xff", "AP8="),
        (ID, str(ID)),
        (float("nan"), None),
        (True, True),
        ({"a": [1]}, {"a": [1]}),
        ("åäö", "åäö"),
    ],
)
def test_every_kind_of_value_has_its_json(value: Any, wanted: Any) -> None:
    assert json.loads(row_json({"x": value})) == {"x": wanted}


def test_keys_are_the_text_of_a_column_or_an_object_of_several() -> None:
    row = {"id": 7, "shop": "north", "note": None}
    assert key_of(row, ["id"]) == b"7"
    assert key_of(row, ["shop"]) == b"north"
    assert key_of(row, ["shop", "id"]) == b'{"shop":"north","id":7}'
    assert key_of(row, []) is None
    assert key_of(row, ["note"]) is None


def test_values_of_an_outbox_stay_as_they_are() -> None:
    assert bytes_of(b"\x00raw") == b"\x00raw"
    assert bytes_of("text") == b"text"
    assert bytes_of({"a": 1}) == b'{"a":1}'
    assert bytes_of(None) is None
    assert text_of(Decimal("1.5")) == "1.5"


def test_times_without_a_zone_are_utc() -> None:
    assert timestamp_ms(datetime(1970, 1, 1, 0, 0, 1)) == 1_000
    assert timestamp_ms(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1_000
    assert timestamp_ms(None) is None
    assert timestamp_ms(date(1970, 1, 2)) == 86_400_000
    for text in ("1970-01-01T00:00:01Z", " 1970-01-01 00:00:01", "1970-01-01T01:00:01+01:00"):
        assert timestamp_ms(text) == 1_000
    for value in ("yesterday", "", 1_000, b"1970-01-01"):
        with pytest.raises(ValueError, match="which is not a time"):
            timestamp_ms(value)


def test_places_keep_their_types_over_json() -> None:
    position = (
        datetime(2024, 5, 1, 6, 30, 0, 12, tzinfo=UTC),
        date(2024, 5, 1),
        7,
        "x",
        Decimal("1.50"),
        ID,
        b"\x01",
    )
    assert position_from(json.loads(json.dumps(position_json(position)))) == position


def test_a_place_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot be followed by dict"):
        position_json(({},))


def test_numbers_that_were_left_out_are_asked_for_until_they_are_far() -> None:
    assert SeenNumbers().after([3], overlap=10) == SeenNumbers(3, (1, 2)), "the first may have been overtaken"
    assert SeenNumbers().after([30], overlap=2) == SeenNumbers(30, (28, 29))
    seen = SeenNumbers(2).after([3, 4, 7], overlap=10)
    assert seen == SeenNumbers(7, (5, 6))
    assert seen.after([5, 9], overlap=10) == SeenNumbers(9, (6, 8))
    assert seen.after([16], overlap=10) == SeenNumbers(16, (6, *range(8, 16)))
    assert seen.after([17], overlap=10) == SeenNumbers(17, tuple(range(8, 17))), "6 is too far back"
    assert seen.after([], overlap=10) is seen


@given(st.permutations(list(range(1, 40))), st.integers(1, 8))
def test_no_number_is_lost_that_comes_late_but_near(order: list[int], at_once: int) -> None:
    """In any order of commits, rows above the position and in gaps are complete."""
    known, sent = SeenNumbers(), set[int]()
    there: set[int] = set()
    for start in range(0, len(order), at_once):
        there |= set(order[start : start + at_once])
        found = {each for each in there if each > (known.last or 0) or each in known.gaps}
        assert not found & sent
        sent |= found
        known = known.after(found, overlap=1_000)
    assert sent == set(order)
