"""Libraries that are imported when they are first used.

Spark starts a Python worker for each step of planning, `ottla pipeline check` needs no Spark at all, and some
libraries are installed only with the extra that needs them. Importing them with the modules that use them
would cost such a process up to a second, or fail.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["functions", "np", "pa", "pc", "pd", "sa"]


class LazyModule:
    """A module that is imported when one of its names is looked up."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copies and pickles ask for their methods
            raise AttributeError(name)
        found = getattr(import_module(self._name), name)
        setattr(self, name, found)
        return found

    def __reduce__(self) -> tuple[type[LazyModule], tuple[str]]:
        return LazyModule, (self._name,)


if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc
    import sqlalchemy as sa
    from pyspark.sql import functions
else:
    functions = LazyModule("pyspark.sql.functions")
    np = LazyModule("numpy")
    pa = LazyModule("pyarrow")
    pc = LazyModule("pyarrow.compute")
    pd = LazyModule("pandas")
    sa = LazyModule("sqlalchemy")
