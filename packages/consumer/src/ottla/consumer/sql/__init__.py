"""Topics as tables of DuckDB: `ottla sql`, `Topics` and `read_table`.

Needs `pip install 'ottla-consumer[sql]'`, which brings DuckDB, pyarrow and msgspec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.consumer.sql.errors import QueryFailed, SqlMissing

if TYPE_CHECKING:
    from ottla.consumer.sql.session import Result, Topics, Window, read_table

__all__ = ["QueryFailed", "Result", "SqlMissing", "Topics", "Window", "read_table"]


def __getattr__(name: str) -> Any:
    """Import the session with its first use: DuckDB and pyarrow are optional."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from ottla.consumer.sql import session
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in SqlMissing.LIBRARIES:
            raise
        raise SqlMissing(error.name or "duckdb") from error
    return getattr(session, name)
