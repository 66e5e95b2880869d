"""The code on README and docs pages, and functions to run it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("packages/*/README.md"),
        *ROOT.glob("docs/**/*.md"),
    ]
)
PRINTED_SERVERS = "127.0.0.1:9092"
PRINTED_ZOOKEEPER = "127.0.0.1:2181"
TIMEOUT_S = 60
TRANSACTIONS = "needs transactions"
"""The mark of blocks that need a broker of their own, with transactions."""
_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>not run|needs \w+): .+? -->\n)?^```(?P<language>python|console)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    code: str
    line: int

    @property
    def file(self) -> str | None:
        """The name of the file it is to be saved as, if its first line is a comment that says so."""
        found = re.match(r"# (\w+\.py)\n", self.code)
        return found and found[1]


def blocks(page: Path, mark: str | None = None) -> list[Block]:
    """Return the blocks of a page with a given mark; without one, those that run anywhere."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["code"], text.count("\n", 0, found.start("code")))
        for found in _BLOCK.finditer(text)
        if found["mark"] == mark
    ]


def pages_with(mark: str) -> list[object]:
    """Return a parameter for each page that has blocks with a mark."""
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES if blocks(page, mark)]


def run_page(
    page: Path,
    bootstrap_servers: str,
    folder: Path,
    mark: str | None = None,
    zookeeper: str = PRINTED_ZOOKEEPER,
    printed: str = PRINTED_SERVERS,
    timeout_s: float = TIMEOUT_S,
    one_program: bool = False,
    only_programs: bool = False,
) -> None:
    """Run the blocks of a page in order, against a broker, as a reader does who copies them.

    Each Python block is a program: a file of its own, run alone. With `one_program` they are one
    program instead, run in this process: names persist from block to block. With `only_programs` what is
    typed in a terminal is left out.
    """
    names: dict[str, object] = {"__name__": "snippet"}
    for block in blocks(page, mark):
        code = block.code.replace(printed, bootstrap_servers)
        code = code.replace(PRINTED_ZOOKEEPER, zookeeper)
        if block.language == "console":
            if not only_programs:
                run_console(code, bootstrap_servers, folder, timeout_s)
        elif re.search(r"^def test_", code, re.MULTILINE):
            run_as_tests(code, folder)
        elif one_program:
            run_python(code, names, page, block.line)
        else:
            run_program(code, folder, block.file or f"{page.stem}_line_{block.line}.py", timeout_s)


def run_python(code: str, names: dict[str, object], page: Path, line: int) -> None:
    """Run a block in this process, with the line numbers of its page for tracebacks."""
    exec(compile("\n" * line + code, str(page), "exec"), names)


def run_program(code: str, folder: Path, name: str, timeout_s: float = TIMEOUT_S) -> None:
    """Copy a block into a file and run that file: it ends well, without a traceback in its log."""
    (folder / name).write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, name],
        capture_output=True, text=True, timeout=timeout_s, cwd=folder, check=False,
    )  # fmt: skip
    said = f"{name} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.returncode == 0, said
    assert "Traceback" not in done.stderr, said


def run_as_tests(code: str, folder: Path) -> None:
    """Run a block of tests with pytest, in its own process and project."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_snippet.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_snippet.py"],
        capture_output=True, text=True, timeout=TIMEOUT_S, cwd=folder, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def run_console(code: str, bootstrap_servers: str, folder: Path, timeout_s: float = TIMEOUT_S) -> None:
    """Run the commands of a block; compare their output, in which `...` matches anything."""
    scripts = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "OTTLA_BOOTSTRAP_SERVER": bootstrap_servers,
    }
    for command, expected in commands(code):
        printed = run_command(command, environment, folder, timeout_s)
        assert matches(printed, expected), f"$ {command}\n{printed}\nwas expected to be\n{expected}"


def run_command(command: str, environment: dict[str, str], folder: Path, timeout_s: float) -> str:
    """Run a command line in a shell and return its output; on a timeout, kill it with its children."""
    with subprocess.Popen(
        command, shell=True, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=environment, cwd=folder, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            return process.communicate(timeout=timeout_s)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def commands(code: str) -> Iterator[tuple[str, str]]:
    """Split a block into commands and their expected output."""
    for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        while command.endswith("\\"):
            more, _, expected = expected.partition("\n")
            command = command[:-1] + more
        yield command, expected


def matches(printed: str, expected: str) -> bool:
    """Compare without regard to the widths of columns."""
    pattern = ".*?".join(re.escape(part) for part in _trimmed(expected).split("..."))
    return re.fullmatch(pattern, _trimmed(printed), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())
