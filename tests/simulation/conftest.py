"""Tests of the simulation: what coroutines of killed brokers say when they are collected is no failure."""

from __future__ import annotations

import gc
import sys

import pytest


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Collect what is left before pytest does, which reports it as errors."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    for _ in range(5):
        gc.collect()
    sys.unraisablehook = hook
