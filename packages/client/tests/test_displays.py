"""Displays of records, batches, groups and topics in notebooks."""

from __future__ import annotations

from html.parser import HTMLParser
from uuid import UUID

from ottla.admin.group_descriptions import GroupDescription, MemberDescription
from ottla.admin.groups import GroupProgress, PartitionProgress
from ottla.client.cluster import Partition, Topic
from ottla.client.displays import MOST_ROWS, Table
from ottla.consumer import ConsumerRecord, RecordBatch, TopicPartition

EVIL = "<script>alert(1)</script>"
P0 = TopicPartition("orders", 0)


class Page(HTMLParser):
    """The elements of a page, and the text of its cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.cells: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.append(tag)
        if tag in ("td", "th", "caption"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


class Printer:
    """A printer of IPython."""

    def __init__(self) -> None:
        self.printed = ""

    def text(self, text: str) -> None:
        self.printed += text


def record(offset: int, value: object = b"tea") -> ConsumerRecord[object, object]:
    return ConsumerRecord(
        "orders", 0, offset, 1_700_000_000_123, b"josef", value, [("h", b"1"), (EVIL, None)]
    )


def test_a_record_is_a_table_whose_text_is_escaped() -> None:
    page = Page(record(7, EVIL.encode())._repr_html_())

    assert set(page.elements) == {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert page.cells == [
        "Record of orders", "partition", "offset", "time", "key", "value", "headers",
        "0", "7", "2023-11-14 22:13:20.123", "josef", EVIL, f"h=1, {EVIL}=",
    ]  # fmt: skip


def test_values_of_any_kind_are_shown_in_one_short_line() -> None:
    values = [b"\xff" * 5_000, {"a": [EVIL]}, None, "two\nlines", "x" * 10**6, -1]
    cells = [Page(record(7, value)._repr_html_()).cells[11] for value in values]

    assert cells[1:4] == ["{'a': ['<script>alert(1)</script>']}", "", "two lines"]
    assert all(len(cell) <= 201 for cell in cells)
    assert Page(ConsumerRecord("t", 0, 1, 2**62)._repr_html_()).cells[9] == str(2**62)
    assert Page(ConsumerRecord("t", 0, 1, -1)._repr_html_()).cells[9] == ""


def test_of_a_large_batch_the_first_records_are_shown() -> None:
    batch = RecordBatch(P0, [record(offset) for offset in range(1_000)], 1_000, 1_000)
    page, printer = Page(batch._repr_html_()), Printer()
    batch._repr_pretty_(printer, cycle=False)

    assert page.elements.count("tr") == MOST_ROWS + 1
    assert "… and 950 more" in batch._repr_html_()
    lines = printer.printed.splitlines()
    assert lines[1].split() == ["partition", "offset", "time", "key", "value", "headers"]
    assert (len(lines), lines[-1]) == (MOST_ROWS + 3, "… and 950 more")


def test_groups_and_topics_are_tables() -> None:
    member = MemberDescription("m-1", None, EVIL, "10.0.0.1", (P0,))
    group = GroupDescription("billing", "Stable", "consumer", "range", 1, (member,))
    progress = GroupProgress(group, (PartitionProgress(P0, 5, 9, member), PartitionProgress(P0, None, None)))
    topic = Topic("orders", UUID(int=1), False, {0: Partition(0, 2, 5, (2, 3), (2,), ())})

    assert Page(group._repr_html_()).cells[5:] == ["m-1", EVIL, "10.0.0.1", "orders-0"]
    assert Page(progress._repr_html_()).cells[7:13] == ["orders", "0", "5", "9", "4", EVIL]
    assert Page(topic._repr_html_()).cells == [
        "Topic orders, 1 partitions", "partition", "leader", "replicas", "in sync", "0", "2", "2, 3", "2"
    ]  # fmt: skip


def test_a_table_is_aligned_as_text() -> None:
    assert Table("Pairs", ("a", "number"), [("x", 1), ("longer", 22)]).text() == (
        "Pairs\na       number\nx       1\nlonger  22"
    )
