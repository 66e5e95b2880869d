"""Whoever follows two pages with one broker meets no topic that the other page has created."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from docs.test_snippets import first_steps
from peers.snippets import PAGES, ROOT, blocks

_MARKS = (
    None, "needs transactions", "needs openTransaction", "needs app", "needs signals", "needs redis",
    "needs uvicorn", "needs notebook", "needs spark", "needs Spark", "needs SparkTransactions",
)  # fmt: skip
"""Those of blocks that a reader runs against the broker of the tutorial."""
_CREATED = re.compile(
    r'^\$ ottla topic create (?P<command>[\w.-]+)|topics\.create\(\s*"(?P<program>[\w.-]+)"'
    r"|for topic in \((?P<several>[^)]*)\):\n +await admin\.topics\.create\(topic",
    re.MULTILINE,
)
_OWN_BROKER = "ottla.broker.testing"


def code_of(page: Path) -> str:
    """Return the code of a page that runs against the reader's broker."""
    found = [block.code for mark in _MARKS for block in blocks(page, mark)]
    return "\n".join(code for code in found if _OWN_BROKER not in code)


def created_by(code: str) -> set[str]:
    """Return the topics that code creates, and that therefore must not exist."""
    names: set[str] = set()
    for match in _CREATED.finditer(code):
        names |= set(re.findall(r'"([\w.-]+)"', match["several"] or ""))
        names |= {match["command"] or match["program"] or ""} - {""}
    return names


def uses(code: str, topic: str) -> bool:
    """Return whether code names a topic: in quotes in a program, or as a word of a command."""
    name = re.escape(topic)
    in_command = re.search(rf"^\$ .*(?<![\w./-]){name}(?![\w./-])", code, re.MULTILINE)
    return in_command is not None or re.search(rf"[\"']{name}[\"']", code) is not None


def test_no_two_pages_create_the_same_topic() -> None:
    creators: dict[str, list[str]] = defaultdict(list)
    for page in PAGES:
        for topic in created_by(code_of(page)):
            creators[topic].append(str(page.relative_to(ROOT)))

    assert {topic: pages for topic, pages in creators.items() if len(pages) > 1} == {}
    assert {"purchases", "prices", "parcels", "tallied"} <= creators.keys()


def test_a_topic_that_a_page_creates_is_used_by_no_page_that_may_be_followed_before() -> None:
    """A program that writes to a topic creates it too. The first steps are followed in their order."""
    order = {page: place for place, page in enumerate(first_steps())}
    used_before = []
    for page in PAGES:
        for topic in created_by(code_of(page)):
            for other in PAGES:
                follows = page in order and order.get(other, -1) > order[page]
                if other != page and not follows and uses(code_of(other), topic):
                    used_before.append(f"{other.relative_to(ROOT)} uses {topic} of {page.relative_to(ROOT)}")

    assert used_before == []
