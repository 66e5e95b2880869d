"""What lives as long as a Python worker of Spark is not looked at in each collection of garbage.

A worker collects all garbage after each task. Looking through the modules that Spark, Arrow and this package
import took 30 ms of CPU each time, more than a small task.
"""

from __future__ import annotations

import gc
from functools import cache


@cache
def exclude_modules_from_collections() -> None:
    """Exclude what exists now, once per process: call it when a first task has imported what tasks need."""
    gc.freeze()
