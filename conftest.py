"""Settings of all tests: a whole environment, a SIGINT that programs take, no deadline of Hypothesis."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import signal
import socket
import sys
import tomllib
from collections.abc import Generator
from importlib import metadata
from itertools import compress, islice
from pathlib import Path
from typing import Any, TypeVar

import pytest

with contextlib.suppress(ImportError):  # some sessions install no Hypothesis, and run no test that needs it
    from hypothesis import settings

    settings.register_profile("ottla", deadline=None)
    settings.load_profile("ottla")

PACKAGES = Path(__file__).parent / "packages"
T = TypeVar("T")
_M_MMAP_THRESHOLD = -3
_MIB = 1 << 20

# A suite that a shell runs in the background (`nox &`) ignores SIGINT, and so do the programs that it starts:
# tests that end one by Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A log on a disk in memory has indexes of 10 MiB. When the first is freed, glibc raises the size from which
# it maps memory above them, and takes later ones from the heap, which small objects keep from shrinking:
# after 40 tests 890 of its 899 MiB were free. A threshold that is set stays.
if sys.platform == "linux":
    with contextlib.suppress(OSError, AttributeError):  # other C libraries have no mallopt
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MIB)

_THRESHOLDS = gc.get_threshold()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Allow full collections again.

    A broker holds them off while it works on a long request and for a second after. Where a test ended its
    loop earlier, none came in that process any more, and disks in memory are in cycles of references.
    """
    gc.set_threshold(*_THRESHOLDS)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--debug-secrets", action="store_true", help="log at DEBUG, and fail if a log has a secret of a test"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse an editable installation that is older than the tree: it lacks a package, or has old commands.

    It has the modules of the tree, but the commands of the day on which it was made.
    """
    folders = sorted(folder.parent for folder in PACKAGES.glob("*/src"))
    stale = [folder for folder in folders if _is_stale(folder)]
    if stale and any(_is_editable(f"ottla-{folder.name}") for folder in folders):
        paths = " ".join(f"-e {folder.relative_to(PACKAGES.parent)}" for folder in stale)
        raise pytest.UsageError(
            "the packages of this tree are not all installed, or older: "
            f"uv pip install --no-deps --no-build-isolation {paths}"
        )
    if config.getoption("--debug-secrets"):
        from peers.debug_secrets import DebugSecrets

        config.pluginmanager.register(DebugSecrets())


def _is_stale(folder: Path) -> bool:
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = project.get("entry-points", {}) | {"console_scripts": project.get("scripts", {})}
    wanted = {(group, name, value) for group, entries in groups.items() for name, value in entries.items()}
    try:
        installed = metadata.distribution(project["name"]).entry_points
    except metadata.PackageNotFoundError:
        return True
    return wanted != {(entry.group, entry.name, entry.value) for entry in installed}


def _is_editable(distribution: str) -> bool:
    try:
        origin = metadata.distribution(distribution).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return False
    return origin is not None and bool(json.loads(origin).get("dir_info", {}).get("editable"))


class KafkaPythonSocket(socket.socket):
    """A socket of kafka-python, in a class of its own: `filterwarnings` lets it be forgotten.

    A client of kafka-python 3.0.12 that is closed while it connects does not close the socket (`connect` in
    kafka/net/inet.py), and the garbage collector tells that to whichever test comes later.
    """


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin a run on several processes with its long tests: one that begins last is waited for by itself.

    xdist gives each process a part of the list, and later moves tests from the ends of parts.
    """
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    if processes > 1:
        is_long = [item.get_closest_marker("long") is not None for item in items]
        long = list(compress(items, is_long))
        rest = [item for item, known in zip(items, is_long, strict=True) if not known]
        items[:] = begin_with(long, rest, processes)


def begin_with(first: list[T], rest: list[T], parts: int) -> list[T]:
    """Order items so that each of so many equal parts begins with its share of `first`."""
    ordered: list[T] = []
    waiting, left = iter(rest), len(first) + len(rest)
    for part in range(parts):
        size = left // (parts - part)  # as xdist divides
        begun = first[part::parts]
        ordered += begun
        ordered += islice(waiting, max(0, size - len(begun)))
        left -= size
    return [*ordered, *waiting]


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
