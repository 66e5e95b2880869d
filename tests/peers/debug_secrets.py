"""`pytest --debug-secrets`: log everything at DEBUG, and fail if a log has a secret that tests use.

The secrets are the passwords, keys and tokens in the sources of the tests, and the files of passwords that
brokers and coordinators make. All processes of brokers log at DEBUG, too. Logs of clients are kept in a file
of each test process; the looks for secrets are at its end.
"""

from __future__ import annotations

import ast
import base64
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from ottla.broker.runtime.log_lines import FactsFormatter
from ottla.broker.testing import LOG_LEVEL_VARIABLE

ROOT: Final = Path(__file__).parents[2]
LEAST_LETTERS: Final = 8
_NAME: Final = re.compile(r"password|secret(?!s)|_key_password|token_key", re.IGNORECASE)
_JAAS: Final = re.compile(r"""(?:password|user_\w+)=["']([^"'{}\\]+)["']""")
_SECRET_FILES: Final = ("*.password", "secret")
_SEGMENT: Final = re.compile(r"\d{20}\.log")
_NO_SECRETS: Final = {"password", "secret", "truststore", "a password", "KAFKA_PASSWORD"}
_MOST_SHOWN: Final = 20
_KEY: Final = "secrets at DEBUG"


def secrets_in(source: str) -> Iterator[str]:
    """Yield the secrets in a test's source: values of names, keys and keywords that are named like one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign):
            yield from _values((ast.unparse(target) for target in node.targets), node.value)
        elif isinstance(node, ast.keyword) and node.arg is not None:
            yield from _values([node.arg], node.value)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                yield from _values([ast.unparse(key)] if key is not None else [], value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _JAAS.findall(node.value)


def _values(names: Iterable[str], value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.Constant) and isinstance(value.value, str) and any(map(_NAME.search, names)):
        yield value.value


def known_secrets(folder: Path) -> set[str]:
    """Return the secrets of all tests, and those in files that brokers made below a folder."""
    sources = [*ROOT.glob("packages/*/tests/**/*.py"), *ROOT.glob("tests/**/*.py")]
    found = {secret for source in sources for secret in secrets_in(source.read_text(encoding="utf-8"))}
    for pattern in _SECRET_FILES:
        files = (path for path in folder.rglob(pattern) if path.is_file())
        found |= {path.read_text(errors="replace").strip() for path in files}
    return {text for text in found if len(text) >= LEAST_LETTERS and text not in _NO_SECRETS}


def leaks(secrets: Iterable[str], logs: Iterable[Path]) -> Iterator[str]:
    """Yield a line for each secret in a log, in clear or in base64, with the words before it."""
    forms = {secret: secret for secret in secrets}
    forms |= {base64.b64encode(secret.encode()).decode().rstrip("="): secret for secret in forms}
    for path in logs:
        text = path.read_text(errors="replace")
        for form, secret in forms.items():
            if (at := text.find(form)) >= 0:
                line = text[text.rfind("\n", 0, at) + 1 : at]
                yield f"{path}: {secret!r} behind {line[-200:]!r}"


class DebugSecrets:
    """Keeps the logs of this process at DEBUG, and looks for secrets at its end."""

    def __init__(self) -> None:
        self._log = Path(tempfile.mkdtemp(prefix="ottla-debug-")) / "tests.log"
        self._handler = logging.FileHandler(self._log, encoding="utf-8")
        self._handler.setFormatter(FactsFormatter())
        logging.getLogger().addHandler(self._handler)
        logging.getLogger().setLevel(logging.DEBUG)
        os.environ[LOG_LEVEL_VARIABLE] = "debug"
        self._others: list[str] = []
        self._logs_of_others = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._handler.flush()
        factory: pytest.TempPathFactory = session.config._tmp_path_factory  # type: ignore[attr-defined]
        folder = factory.getbasetemp()
        logs = [path for path in folder.rglob("*.log") if not _SEGMENT.fullmatch(path.name)]
        lines = list(leaks(known_secrets(folder), [self._log, *logs]))
        output = getattr(session.config, "workeroutput", None)
        if output is None:
            self._report(session, lines, len(logs) + 1)
        else:
            output[_KEY] = lines, len(logs) + 1

    def pytest_testnodedown(self, node: Any) -> None:
        """Take what another process of this run has found."""
        lines, logs = node.workeroutput.get(_KEY, ([], 0))
        self._others += lines
        self._logs_of_others += logs

    def _report(self, session: pytest.Session, lines: list[str], logs: int) -> None:
        found = self._others + lines
        print(f"\n--debug-secrets: {len(found)} secrets in {logs + self._logs_of_others} logs")
        for line in found[:_MOST_SHOWN]:
            print(f"  {line}")
        if found:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
