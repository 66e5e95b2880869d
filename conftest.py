"""Settings of all tests: a SIGINT that programs take, no deadline of Hypothesis, no collection of tests."""

from __future__ import annotations

import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Generator
from typing import Any

import pytest

with contextlib.suppress(ImportError):  # some sessions install no Hypothesis, and run no test that needs it
    from hypothesis import settings

    settings.register_profile("ottla", deadline=None)
    settings.load_profile("ottla")

# A suite that a shell runs in the background (`nox &`) ignores SIGINT, and so do the programs that it starts:
# tests that end one by Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class KafkaPythonSocket(socket.socket):
    """A socket of kafka-python, in a class of its own: `filterwarnings` lets it be forgotten.

    A client of kafka-python 3.0.12 that is closed while it connects does not close the socket (`connect` in
    kafka/net/inet.py), and the garbage collector tells that to whichever test comes later.
    """


def pytest_collection_finish() -> None:
    """Give kafka-python, where a collected test uses it, its own class of sockets."""
    if (module := sys.modules.get("kafka.net.inet")) is not None:
        module.KafkaNetSocket.socket = _kafka_python_socket


def _kafka_python_socket(_: object, *how: Any, **named: Any) -> socket.socket:
    return KafkaPythonSocket(*how, **named)


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
