"""Log lines are an event and its facts: `log.info("isr shrunk", extra={"partition": partition})`.

The event is one text for all its lines, so that it can be searched and counted; the facts stay values.
`ottla.client.log_formats` shows both.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final, TypeGuard

from structure.sources import Source, package_sources

BEFORE_THE_EVENT: Final = {
    "debug": 0, "info": 0, "warning": 0, "error": 0, "exception": 0, "critical": 0, "log": 1, "warn": 1,
}  # fmt: skip
"""Arguments before the event: a level, or the subject of a warning that is limited in rate."""


def test_log_calls_have_an_event_and_facts() -> None:
    formatted = [
        f"{source}:{call.lineno} {ast.unparse(call)[:80]}"
        for source in package_sources()
        if not source.is_native
        for call in _log_calls(source)
        if not _has_event_and_facts(call)
    ]

    assert not formatted, 'write log.info("event", extra={"fact": value}):\n' + "\n".join(formatted)


def test_the_rule_sees_text_that_is_put_together() -> None:
    def allowed(text: str) -> list[bool]:
        tree = ast.parse(text)
        return [_has_event_and_facts(call) for call in ast.walk(tree) if _is_log_call(call, {"log"})]

    assert allowed('log.info("started")\nlog.log(level, "isr shrunk", extra=facts)') == [True, True]
    assert allowed('self._warnings.warn(host, "closed", extra={"why": 1})\nlog.error(event)') == [True, True]
    assert allowed('log.info("%s started", name)\nlog.info(f"{name} started")') == [False, False]
    assert allowed('log.log(level, "led in %d", 3)\nlog.info("a" + name)') == [False, False]


def _log_calls(source: Source) -> Iterator[ast.Call]:
    loggers = {
        target.id
        for node in source.tree.body
        if isinstance(node, ast.Assign) and "getLogger" in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return (node for node in ast.walk(source.tree) if _is_log_call(node, loggers))


def _is_log_call(node: ast.AST, loggers: set[str]) -> TypeGuard[ast.Call]:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    if node.func.attr not in BEFORE_THE_EVENT:
        return False
    owner = ast.unparse(node.func.value)
    return owner in loggers or owner.endswith("warnings")


def _has_event_and_facts(call: ast.Call) -> bool:
    assert isinstance(call.func, ast.Attribute)
    event = call.args[BEFORE_THE_EVENT[call.func.attr] :]
    if len(event) != 1:
        return False
    text = event[0]
    return isinstance(text, ast.Name) or (isinstance(text, ast.Constant) and "%" not in str(text.value))
