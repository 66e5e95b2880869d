"""`pytest --debug-secrets`: log everything at DEBUG, and fail if a log has a secret that tests use.

The secrets are the passwords, keys and tokens in the sources of the tests, and the files of passwords that
brokers and coordinators make. All processes of brokers log at DEBUG, too. Logs of clients are kept in a file
of each test process; the looks for secrets are at its end. kafka-python is not ours, and logs the requests of
its logins whole: it stays at INFO.
"""

from __future__ import annotations

import ast
import base64
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from ottla.broker.testing import LOG_LEVEL_VARIABLE
from ottla.client.log_formats import FactsFormatter

ROOT: Final = Path(__file__).parents[2]
LEAST_LETTERS: Final = 8
_NAME: Final = re.compile(r"password|secret(?!s)|_key_password|token_key", re.IGNORECASE)
_JAAS: Final = re.compile(r"""(?:password|user_\w+)=["']([^"'{}\\]+)["']""")
_SECRET_FILES: Final = ("*.password", "secret")
_SEGMENT: Final = re.compile(r"\d{20}\.log")
_NO_SECRETS: Final = {"password", "secret", "truststore", "a password", "KAFKA_PASSWORD"}
_NO_SECRET: Final = re.compile(r".*\$\{.*|[a-z]+(\.[a-z]+)+|[A-Z_]+|\(\?P<.*")
"""Places of secrets, names of settings and constants, and patterns that look for secrets."""
_MOST_SHOWN: Final = 20
_SHOWN_BYTES: Final = 200
_PIECE_BYTES: Final = 1 << 24
_KEY: Final = "secrets at DEBUG"


def secrets_in(source: str) -> Iterator[str]:
    """Yield the secrets in a test's source: values of names, keys and keywords that are named like one."""
    if not _NAME.search(source) and not _JAAS.search(source):
        return  # most sources: to parse all of them takes seconds
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign):
            yield from _values((ast.unparse(target) for target in node.targets), node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from _values([ast.unparse(node.target)], node.value)
        elif isinstance(node, ast.keyword) and node.arg is not None:
            yield from _values([node.arg], node.value)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                yield from _values([ast.unparse(key)] if key is not None else [], value, is_key=True)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _JAAS.findall(node.value)


def _values(names: Iterable[str], value: ast.expr, *, is_key: bool = False) -> Iterator[str]:
    """Yield the texts of a value whose name is that of a secret; `PASSWORDS` has one for each user."""
    # A key in words is the name of a case, and its value an expected error.
    if not any(_NAME.search(name) and not (is_key and " " in name) for name in names):
        return
    values = value.values if isinstance(value, ast.Dict) else [value]
    for found in values:
        if isinstance(found, ast.Constant) and isinstance(found.value, str):
            yield found.value


def known_secrets(folder: Path) -> set[str]:
    """Return the secrets of all tests, and those in files that brokers made below a folder."""
    sources = [*ROOT.glob("packages/*/tests/**/*.py"), *ROOT.glob("tests/**/*.py")]
    found = {secret for source in sources for secret in secrets_in(source.read_text(encoding="utf-8"))}
    for pattern in _SECRET_FILES:
        files = (path for path in folder.rglob(pattern) if path.is_file())
        found |= {path.read_text(errors="replace").strip() for path in files}
    found -= _NO_SECRETS
    return {text for text in found if len(text) >= LEAST_LETTERS and not _NO_SECRET.fullmatch(text)}


def leaks(secrets: Iterable[str], logs: Iterable[Path]) -> Iterator[str]:
    """Yield a line for each secret in a log, in clear or in base64, with the words before it."""
    forms = {form: secret for secret in secrets for form in _forms(secret.encode())}
    for path in logs:
        yield from _leaks_in(path, forms)


def _forms(secret: bytes) -> Iterator[bytes]:
    """Yield a secret in clear, and the part of base64 that it alone makes, behind any number of bytes."""
    yield secret
    for before, first in ((0, 0), (1, 2), (2, 3)):
        bits = 8 * (before + len(secret))
        encoded = base64.b64encode(b"\0" * before + secret)[first : bits // 6]
        if len(encoded) >= LEAST_LETTERS:
            yield encoded


def _leaks_in(path: Path, forms: Mapping[bytes, str]) -> Iterator[str]:
    """Look through a log in pieces: that of a whole run takes a gigabyte."""
    found, kept, overlap = set[str](), b"", _SHOWN_BYTES + max(map(len, forms), default=0)
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            text = kept + piece
            for form, secret in forms.items():
                if secret not in found and (at := text.find(form)) >= 0:
                    found.add(secret)
                    line = text[max(text.rfind(b"\n", 0, at) + 1, at - _SHOWN_BYTES) : at]
                    yield f"{path}: {secret!r} behind {line.decode(errors='replace')!r}"
            kept = text[-overlap:]


class DebugSecrets:
    """Keeps the logs of this process at DEBUG, and looks for secrets at its end."""

    def __init__(self) -> None:
        self._log = Path(tempfile.mkdtemp(prefix="ottla-debug-")) / "tests.log"
        self._handler = logging.FileHandler(self._log, encoding="utf-8")
        self._handler.setFormatter(FactsFormatter())
        logging.getLogger().addHandler(self._handler)
        logging.getLogger().setLevel(logging.DEBUG)
        logging.getLogger("kafka").setLevel(logging.INFO)
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
