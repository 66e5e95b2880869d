"""The database of a pipeline: its URL, its connections, and errors about them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, TypeAdapter

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.declaration import Mistake, PathOrUrl, Table
from ottla.pipeline.lazy import sa

_SECRET = re.compile(r"\$\{(\w+)\}")
_SQLITE = "sqlite:///"
_DRIVERS = {
    "postgresql": "psycopg[binary]",
    "mysql": "mysqlclient",
    "mariadb": "mariadb",
    "oracle": "oracledb",
}


class DatabaseFailed(PipelineError):
    """A database that cannot be used as declared."""


def _placed(url: str) -> str:
    """Return the URL with an absolute path for a SQLite file, which is relative to the declaration."""
    path = url.removeprefix(_SQLITE)
    if path == url or not path or path.startswith((":memory:", "/")):
        return url
    return _SQLITE + str(TypeAdapter(PathOrUrl).validate_python(path))


class Database(Table):
    """A database."""

    url: Annotated[str, AfterValidator(_placed)] = Field(
        examples=["postgresql://shop:${SHOP_PASSWORD}@db.example/shop"], min_length=1
    )
    """A URL of SQLAlchemy. `${NAME}` is replaced from the environment, for passwords."""

    def inspect(self) -> Iterator[Mistake]:
        """Yield mistakes in the URL that can be found without connecting."""
        if find_spec("sqlalchemy") is None:
            yield Mistake(("url",), "databases need SQLAlchemy: pip install 'ottla-pipeline[sql]'")
            return
        try:
            url = sa.make_url(self.url)
            url.get_dialect().import_dbapi()
        except sa.exc.NoSuchModuleError:
            yield Mistake(("url",), f"SQLAlchemy has no database {url.drivername!r}")
        except (sa.exc.ArgumentError, ValueError):
            said = "must be a URL such as sqlite:///shop.db or postgresql://user@host/shop"
            yield Mistake(("url",), said)
        except ImportError:
            yield Mistake(("url",), f"needs the database driver: pip install '{_driver(url)}'")

    @contextmanager
    def connect(self) -> Iterator[sa.Engine]:
        """Open connections on demand and close them at the end. Raises DatabaseFailed."""
        url = sa.make_url(_SECRET.sub(_secret, self.url))
        _refuse_missing(url)
        engine = sa.create_engine(url, pool_pre_ping=True)
        try:
            yield engine
        finally:
            engine.dispose()


def _refuse_missing(url: sa.URL) -> None:
    """Reject a missing file: SQLite would create an empty database for a mistyped name."""
    file = url.database
    if url.get_backend_name() != "sqlite" or not file or file.startswith((":memory:", "file:")):
        return
    if not Path(file).is_file():
        raise DatabaseFailed(f"database {file} does not exist: no such file")


def _driver(url: sa.URL) -> str:
    backend = url.get_backend_name()
    return _DRIVERS.get(backend, url.drivername.partition("+")[2] or backend)


def _secret(found: re.Match[str]) -> str:
    value = os.environ.get(found[1])
    if value is None:
        raise DatabaseFailed(
            f"the database URL has ${{{found[1]}}}, but the environment has no variable {found[1]}"
        )
    from urllib.parse import quote

    return quote(value, safe="")


def reflected(engine: sa.Engine, name: str) -> sa.Table:
    """Return a table or view with its columns; `schema.table` names the schema. Raises DatabaseFailed."""
    schema, _, table = name.rpartition(".")
    try:
        return sa.Table(table, sa.MetaData(), autoload_with=engine, schema=schema or None)
    except sa.exc.NoSuchTableError:
        known = ", ".join(sorted(sa.inspect(engine).get_table_names(schema or None))) or "none at all"
        raise DatabaseFailed(f"the database has no table {name!r}; the tables are {known}") from None


def column_of(table: sa.Table, name: str) -> sa.Column[object]:
    """Return a column. Raises DatabaseFailed."""
    if name not in table.c:
        raise DatabaseFailed(
            f"table {table.fullname!r} has no column {name!r}; the columns are {', '.join(table.c.keys())}"
        )
    return table.c[name]
