"""The state of a table in its address: words searched, order, page. Every view is a link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar
from urllib.parse import urlencode

T = TypeVar("T")

PAGE_ROWS: Final = 100
_MOST_TEXT: Final = 249
"""The longest name of a topic."""


@dataclass(frozen=True, slots=True)
class TableView:
    """Which rows of a table are shown, and in which order. Pages count from 1."""

    text: str = ""
    order: str = "name"
    descending: bool = False
    page: int = 1
    more: tuple[tuple[str, str], ...] = ()
    """Other filters of the table, by their name in the address."""
    first: str = "name"
    """The order that an address need not name."""

    def link(self, **changes: object) -> str:
        """Return the query of the same table with changes, from its first page unless one is named."""
        return _query(replace(self, **{"page": 1, **changes}))  # type: ignore[arg-type]

    def order_link(self, order: str) -> str:
        """Return the query that orders by a column, the other way round if it is ordered by it already."""
        return self.link(order=order, descending=order == self.order and not self.descending)

    def sort(self, order: str) -> str:
        """Return the value of aria-sort for a column."""
        if order != self.order:
            return "none"
        return "descending" if self.descending else "ascending"


def _query(view: TableView) -> str:
    parts = [("q", view.text), ("order", "" if view.order == view.first else view.order)]
    parts += [("down", "1" if view.descending else ""), ("page", "" if view.page == 1 else str(view.page))]
    return "?" + urlencode([part for part in (*parts, *view.more) if part[1]])


def table_view(
    query: Mapping[str, str], orders: Sequence[str] = ("name",), more: Sequence[str] = ()
) -> TableView:
    """Return the table that an address asks for; what does not make sense in it counts as not given."""
    order, page = query.get("order", ""), query.get("page", "")
    return TableView(
        query.get("q", "")[:_MOST_TEXT],
        order if order in orders else orders[0],
        query.get("down") == "1",
        max(1, int(page)) if page.isascii() and page.isdigit() and len(page) < 9 else 1,
        tuple((name, query[name]) for name in more if query.get(name)),
    )


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of rows: how many there are in all, and the number of the page and of the last."""

    rows: Sequence[T]
    total: int
    number: int
    last: int


def page_of(rows: Sequence[T], number: int, size: int = PAGE_ROWS) -> Page[T]:
    """Return one page of rows; the last one for a number beyond it."""
    last = max(1, -(-len(rows) // size))
    chosen = min(number, last)
    return Page(rows[(chosen - 1) * size : chosen * size], len(rows), chosen, last)
