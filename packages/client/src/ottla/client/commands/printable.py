"""Text of records and of names as a terminal may show it."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Escape what is not printable: control characters, line ends, invisible marks, lone surrogates.

    They become `\n`, `\x1b` or `\u2028`, as in a Python literal. Backslashes stay.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def shortened(text: str, max_length: int) -> str:
    """Return printable text of at most `max_length` characters; an ellipsis says that it was cut."""
    shown = printable(text)
    return shown if len(shown) <= max_length else shown[: max_length - 1] + "…"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
