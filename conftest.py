"""Settings of all tests: no deadline for Hypothesis examples, no garbage collection of collected tests."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator

import pytest

with contextlib.suppress(ImportError):  # some sessions install no Hypothesis, and run no test that needs it
    from hypothesis import settings

    settings.register_profile("ottla", deadline=None)
    settings.load_profile("ottla")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from ten thousand tests and their modules: they stay to the end.

    It took a fifth of the time in which they are collected, and every full collection of a later test again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
