"""Errors of queries, each in one line with its cure."""

from __future__ import annotations

import re
from typing import ClassVar, Final

from ottla.client.errors import ClientError

_ADVICE: Final = (
    ("does not have key", ""),
    (
        "file system operations are disabled|disabled by configuration",
        "a query reads no files unless --allow-files (allow_files=True) permits it",
    ),
    (
        "Could not convert|Failed to cast|has a fraction",
        "a value does not fit the sample: --sample N reads more of it, --lenient makes such values NULL",
    ),
    (
        "Malformed JSON",
        "a value is no JSON: --lenient makes its columns NULL, --values TOPIC=text reads none",
    ),
    ("Out of Memory|could not allocate", "give the query more with --memory"),
)
_OFFSET: Final = re.compile(r"(?<![\"\w])offset(?![\"\w])", re.IGNORECASE)
_PREFIX: Final = re.compile(r"^(Invalid Input|[A-Z][A-Za-z]+) Error: ")


class SqlMissing(ClientError):
    """A library that queries need is not installed."""

    LIBRARIES: ClassVar = ("duckdb", "pyarrow", "msgspec")

    def __init__(self, library: str) -> None:
        super().__init__(f"SQL over topics needs {library}: pip install 'ottla-consumer[sql]'")


class QueryFailed(ClientError):
    """DuckDB rejects a query, or a value that it reads."""


def query_failed(message: str, query: str) -> QueryFailed:
    """Return the error for a message of DuckDB: its first sentence, and advice where there is some."""
    text = " ".join(_PREFIX.sub("", message.partition("\n\nLINE ")[0]).split())
    if "syntax error" in text and _OFFSET.search(query):
        return QueryFailed(f'{text}: offset is a word of SQL, so write "offset" in quotes')
    advice = next((advice for pattern, advice in _ADVICE if re.search(pattern, text)), "")
    return QueryFailed(f"{text}; {advice}" if advice else text)
