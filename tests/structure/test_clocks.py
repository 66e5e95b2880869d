"""Rules about clocks and chance that a linter cannot see; `packages/*/ruff.toml` has those it can."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

import pytest

from structure.sources import ROOT, Source, package_sources

TIMES: Final = {"now_ms", "now_s", "monotonic_ms"}
CLOCKS: Final = {"time", "now_ms", "monotonic_ms", "monotonic_s"}
"""Methods and functions that read a clock: of an event loop, of an environment."""
PURE: Final = (
    "broker/controller/state_machine.py",
    "broker/controller/elections.py",
    "broker/log/compaction/cleaned_transactions.py",
    "broker/log/compaction/compaction_rules.py",
    "broker/log/compaction/compaction_rules.py",
    "broker/groups/classic/group.py",
    "broker/groups/classic/rebalance.py",
    "broker/log/retention/retention.py",
    "broker/log/segments/rolling.py",
    "broker/replication/isr.py",
    "broker/replication/partition.py",
    "broker/transactions/events.py",
    "broker/transactions/marker_queue.py",
    "broker/transactions/partition_state.py",
    "broker/transactions/transaction.py",
    "client/config_definition.py",
    "client/frames.py",
    "client/api_versions.py",
    "consumer/assignors/*.py",
    "consumer/fetch/resolution_steps.py",
    "consumer/fetch/positions.py",
    "consumer/fetch/session.py",
    "consumer/group/leadership.py",
    "consumer/group/rebalance*.py",
    "producer/accumulator.py",
    "producer/partitioner.py",
    "producer/sender/sequence_numbers.py",
    "producer/transactions/state.py",
    "streams/dedupe/identity.py",
    "streams/dedupe/window.py",
    "streams/scheduling/*.py",
    "zookeeper/embedded/request_processor.py",
    "zookeeper/embedded/data_tree.py",
    "zookeeper/znodes/*.py",
)
"""Modules that decide: events and the time in, decisions out."""
SIMULATED: Final = ("protocol", "broker", "zookeeper", "client", "producer", "consumer", "streams")


def test_a_function_that_is_given_the_time_reads_no_clock() -> None:
    both = [
        f"{source}:{call.lineno} {function.name} is given the time and calls {read}"
        for source in _sources(SIMULATED)
        for function in _functions(source)
        if TIMES & _parameters(function)
        for call, read in _clock_readings(function)
    ]

    assert not both, "\n".join(both)


@pytest.mark.parametrize("pattern", PURE)
def test_modules_that_decide_know_no_event_loop_and_no_thread(pattern: str) -> None:
    package, _, inside = pattern.partition("/")
    modules = [
        Source(path) for path in sorted((ROOT / f"packages/{package}/src/ottla/{package}").glob(inside))
    ]

    assert modules, f"{pattern} matches no module: name the module that decides now"
    knowing = {str(source): found for source in modules if (found := _imports(source) & _OUTER_WORLD)}
    assert not knowing


def test_generators_of_random_numbers_have_a_seed() -> None:
    unseeded = [
        f"{source}:{node.lineno}"
        for source in _sources(SIMULATED)
        if "Random" in source.text
        for names in [_generators(source)]
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and not node.args and ast.unparse(node.func) in names
    ]

    assert not unseeded, "\n".join(unseeded)


@pytest.mark.parametrize("package", SIMULATED)
def test_native_modules_import_neither_clock_nor_chance(package: str) -> None:
    taking = [
        f"{source}: {line}"
        for source in package_sources()
        if source.is_native and str(source).startswith(f"packages/{package}/src/")
        for line in source.lines
        if line.split()[:2]
        in [[verb, module] for verb in ("import", "from", "cimport") for module in _BANNED]
    ]

    assert not taking, "\n".join(taking)


def test_the_c_headers_that_read_clocks_are_on_the_design_pages() -> None:
    headers = sorted(ROOT.glob("packages/*/src/**/*.h"))
    reading = [header.name for header in headers if _C_CLOCK.search(header.read_text(encoding="utf-8"))]

    assert reading == ["python_clock.h", "monotonic_clock.h", "wall_clock.h"]
    pages = [(ROOT / f"docs/design/{page}.md").read_text(encoding="utf-8") for page in ("clients", "quotas")]
    assert all(f"`{name}`" in "".join(pages) for name in reading)


@pytest.mark.parametrize("package", SIMULATED)
def test_native_modules_read_clocks_and_chance_through_those_headers_only(package: str) -> None:
    folder = ROOT / f"packages/{package}/src"
    reading = [
        f"{path}: {found[0]}"
        for suffix in ("pyx", "pxd", "pxi")
        for path in sorted(folder.rglob(f"*.{suffix}"))
        if (found := _C_CLOCK.search(path.read_text(encoding="utf-8")))
    ]

    assert not reading, "\n".join(reading)


_C_CLOCK: Final = re.compile(
    r"""[<"](?:sys/)?(?:time|random)\.h[>"]|\b(?:clock_gettime|gettimeofday|GetTickCount|s?rand(?:om)?\()"""
)
_BANNED: Final = ("time", "random", "secrets", "libc.time")


_OUTER_WORLD: Final = {"asyncio", "concurrent", "selectors", "socket", "ssl", "threading"}


def _imports(source: Source) -> set[str]:
    """The top-level packages that a module imports."""
    found: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def _sources(packages: tuple[str, ...]) -> Iterator[Source]:
    starts = tuple(f"packages/{package}/src/" for package in packages)
    for source in package_sources():
        is_for_tests = source.path.name == "testing.py" or "testing" in source.path.parts
        if str(source).startswith(starts) and not source.is_native and not is_for_tests:
            yield source


def _functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _generators(source: Source) -> set[str]:
    """The names under which the module imports `random.Random`."""
    found = {"random.Random"}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module == "random":
            found |= {alias.asname or alias.name for alias in node.names if alias.name == "Random"}
    return found


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    arguments = function.args
    return {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def _clock_readings(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[ast.Call, str]]:
    """Calls of a clock, without those of a parameter: `now_ms()` of a given `now_ms` is what was injected."""
    given = _parameters(function)
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and not node.args and _name(node.func) in CLOCKS:
            if isinstance(node.func, ast.Name) and node.func.id in given:
                continue
            yield node, ast.unparse(node.func)


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
