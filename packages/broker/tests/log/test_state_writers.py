"""Only `LogState.apply` changes the state of a log: read from the broker's sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ottla.broker.log.state.log_state as state
from ottla.broker.log.segments.segments import Segments
from ottla.broker.log.state.leader_epochs import LeaderEpochs

BROKER = Path(state.__file__).parents[2]
STATE = "log/state/log_state.py"

OF_SEGMENTS = {
    "add",
    "begin_replace",
    "close",
    "drop_first",
    "drop_since",
    "moved_to",
    "replace_active",
    "settle_replace",
}
OF_EPOCHS = {"assign", "clear", "truncate_from_end", "truncate_from_start"}
CHANGES = {"segments": OF_SEGMENTS, "leader_epochs": OF_EPOCHS}
"""The methods by which parts of the state change."""
OF_LOG_END = {"leader_epoch", "max_plain_bytes", "write"}
"""The fields of the native log end that Python may set."""


def methods_of_the_state() -> dict[str, ast.FunctionDef]:
    tree = ast.parse((BROKER / STATE).read_text())
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "LogState")
    return {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}


def stored(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield node


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def facts() -> set[str]:
    """The facts that `apply` changes: what the methods of the state set, but for the constructor."""
    methods = methods_of_the_state()
    del methods["__init__"]
    return {node.attr for method in methods.values() for node in stored(method) if is_self(node.value)}


FACTS = frozenset(facts())
NATIVE = re.compile(rf"\blog\.(?:{'|'.join(sorted(FACTS))})\b[^()=]*(?<![=!<>])=(?!=)")


def findings(name: str, text: str) -> list[tuple[int, str]]:
    """Return the changes of a log's state in a module that is not `log_state.py`."""
    if not name.endswith(".py"):
        return [
            (number, "sets a fact natively")
            for number, line in enumerate(text.splitlines(), 1)
            if NATIVE.search(line)
        ]
    tree = ast.parse(text)
    return sorted({*sets(name, tree), *calls(tree)})


def sets(name: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    own = {id(node) for log in classes_of_logs(tree) for node in stored(log) if is_self(node.value)}
    for node in stored(tree):
        if node.attr in FACTS and (id(node) in own or is_of_a_log(name, node.value)):
            yield node.lineno, f"sets {node.attr}"
        if name_of(node.value) == "log_end" and node.attr in OF_LOG_END:
            yield node.lineno, f"sets {node.attr} of the log end"
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and name_of(call.func) in ("setattr", "__setattr__"):
            named = {argument.value for argument in call.args if isinstance(argument, ast.Constant)}
            if named & FACTS:
                yield call.lineno, "sets a fact by name"


def classes_of_logs(tree: ast.Module) -> list[ast.ClassDef]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and {name_of(base) for base in node.bases} & {"Log", "LogState"}
    ]


def is_of_a_log(name: str, owner: ast.expr) -> bool:
    """Whether an attribute that is set may be a log's: by the name of its owner.

    In `log/` all are taken for logs, but for the log directories, which may be offline, too.
    """
    if is_self(owner):
        return False
    if name.startswith("log/"):
        return name_of(owner) != "directory"
    return name_of(owner) in ("copy", "log", "older")


def calls(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            part, method = name_of(node.func.value), node.func.attr
            # By its attribute: a list of segments in a variable is no part of a log.
            if isinstance(node.func.value, ast.Attribute) and method in CHANGES.get(part, ()):
                yield node.lineno, f"calls {part}.{method}"


SOURCES = sorted(
    str(path.relative_to(BROKER))
    for path in BROKER.rglob("*.p*")
    if path.suffix in {".py", ".pyx", ".pxd", ".pxi"} and str(path.relative_to(BROKER)) != STATE
)


def test_no_other_module_changes_the_state_of_a_log() -> None:
    found = [
        f"{name}:{line} {change}"
        for name in SOURCES
        for line, change in findings(name, (BROKER / name).read_text())
    ]

    assert found == []


def test_only_apply_leads_to_the_methods_that_change_it() -> None:
    methods = methods_of_the_state()
    changing = {
        name
        for name, method in methods.items()
        if any(is_self(node.value) for node in stored(method)) or list(calls(ast.Module([method], [])))
    }
    callers: dict[str, set[str]] = {name: set() for name in changing}
    for name, method in methods.items():
        for node in ast.walk(method):
            if isinstance(node, ast.Attribute) and is_self(node.value) and node.attr in changing:
                callers[node.attr].add(name)

    assert {name for name in changing if not name.startswith("_")} == {"apply"}
    del callers["apply"]
    for name, known in callers.items():
        assert known <= changing, f"{known} lead to {name}"
    private = {name for name in changing if name.startswith("_")} - {"__init__"}
    for source in SOURCES:
        if source.startswith("log/") and source.endswith(".py"):
            for log_class in classes_of_logs(ast.parse((BROKER / source).read_text())):
                used = {node.attr for node in ast.walk(log_class) if isinstance(node, ast.Attribute)}
                assert not used & private, f"{source} uses {used & private}"


def test_the_facts_are_those_of_a_log() -> None:
    assert sorted(FACTS) == [
        "cleaned_offset",
        "config",
        "directory",
        "is_truncating",
        "log_end",
        "log_start_offset",
        "offline",
        "producers",
        "recovery_point",
        "rules",
        "truncations",
    ]
    assert all(hasattr(Segments, name) for name in OF_SEGMENTS)
    assert all(hasattr(LeaderEpochs, name) for name in OF_EPOCHS)


@pytest.mark.parametrize(
    "line",
    [
        "log.log_start_offset = 1",
        "log.recovery_point += 1",
        "log.offline, end = None, 1",
        "partition.log.cleaned_offset = 1",
        "older.producers = copy.producers",
        "log.config = config",
        "log.log_end.leader_epoch = 7",
        "partition.log.segments.drop_first(2)",
        "self.log.leader_epochs.assign(1, 2)",
        "setattr(log, 'is_truncating', True)",
        "class Other(Log):\n    def end(self) -> None:\n        self.offline = None",
    ],
)
@pytest.mark.parametrize("name", ["log/one.py", "replication/one.py"])
def test_every_way_to_change_it_is_found(line: str, name: str) -> None:
    assert findings(name, line + "\n")


@pytest.mark.parametrize("line", ["log.log_start_offset = 1", "    log.recovery_point += size"])
def test_native_changes_are_found(line: str) -> None:
    assert findings("replication/one.pyx", line + "\n")


@pytest.mark.parametrize(
    "line",
    [
        "start = log.log_start_offset",
        "ok = log.recovery_point == 1",
        "log.apply(outcome)",
        "directory.offline = error",
        "segments.add(segment)",
        "class Other:\n    def end(self) -> None:\n        self.offline = None",
    ],
)
def test_reading_it_is_no_finding(line: str) -> None:
    assert findings("log/one.py", line + "\n") == []
