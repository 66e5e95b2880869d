"""Tables whose state stands in their address."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest

from ottla.console.web.tables import TableView, page_of, table_view

ORDERS = ("name", "size")


def test_an_address_says_words_order_page_and_filters() -> None:
    view = table_view(
        {"q": "ord", "order": "size", "down": "1", "page": "3", "internal": "1"}, ORDERS, ["internal"]
    )

    assert view == TableView("ord", "size", descending=True, page=3, more=(("internal", "1"),))


@pytest.mark.parametrize("page", ["0", "-1", "x", "٣", "9" * 30, ""])
def test_what_makes_no_sense_in_an_address_counts_as_not_given(page: str) -> None:
    assert table_view({"page": page, "order": "password"}, ORDERS) == TableView()


def test_a_link_keeps_the_words_and_begins_at_the_first_page() -> None:
    view = TableView("a & b", "size", page=7, more=(("internal", "1"),))

    assert dict(parse_qsl(view.link()[1:])) == {"q": "a & b", "order": "size", "internal": "1"}
    assert dict(parse_qsl(view.link(page=8)[1:]))["page"] == "8"


def test_the_link_of_a_column_turns_the_order_round_the_second_time() -> None:
    first = TableView()
    second = table_view(dict(parse_qsl(first.order_link("size")[1:])), ORDERS)
    third = table_view(dict(parse_qsl(second.order_link("size")[1:])), ORDERS)

    assert (second.order, second.descending, second.sort("size")) == ("size", False, "ascending")
    assert (third.descending, third.sort("size"), third.sort("name")) == (True, "descending", "none")


def test_a_page_beyond_the_last_is_the_last() -> None:
    found = page_of(list(range(250)), 9, 100)

    assert (list(found.rows), found.number, found.last, found.total) == (list(range(200, 250)), 3, 3, 250)
    assert (page_of([], 5).number, page_of([], 5).last) == (1, 1)
