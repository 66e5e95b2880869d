"""Rules for words and sizes, as functions of sources and commit subjects; `nox -s lint` runs this module.

    python -m structure.house_rules

prints what breaks the rules for words and exits with 1 if there is anything.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Final

from structure.sources import ROOT, Source, package_sources

FIRST_COMMIT: Final = "32d7b623"
"""Subjects of later commits are checked; earlier ones are published, and stay."""
MAX_SUBJECT: Final = 72
CLEAN_PACKAGES: Final = (
    "admin", "broker", "client", "console", "consumer", "pipeline", "producer", "protocol", "registry",
    "streams", "tools", "zookeeper",
)  # fmt: skip
"""Packages whose docstrings are checked. Add one when `nox -s numbers` finds no docstring of it."""

MAX_MODULE_LINES: Final = 500
MAX_REASONED_MODULE_LINES: Final = 800
MAX_FUNCTION_LINES: Final = 50
MIN_MODULE_LINES: Final = 40
SIZE_REASON: Final = "lines because"

_NAMELESS: Final = {"each", "one"}
_FIRST_WORDS: Final = {"let", "have", "tell", "say"}
_FIRST_IN_DOCSTRINGS: Final = re.compile(r"(what|have|let|say)\b", re.IGNORECASE)
_RIDDLES: Final = re.compile(r"\b(what is|nobody|anew|tells?|told|who|whatever|lets?)\b", re.IGNORECASE)


def subject_faults(subject: str) -> Iterator[str]:
    """Yield what is wrong with the first line of a commit message."""
    if len(subject) > MAX_SUBJECT:
        yield f"{len(subject)} characters, at most {MAX_SUBJECT} are allowed"
    first = subject.partition(": ")[2].partition(" ")[0].lower() or subject.partition(" ")[0].lower()
    if first in _FIRST_WORDS:
        yield f"begins with {first!r}: begin with what the commit does"


def docstring_faults(source: Source) -> Iterator[str]:
    """Yield the docstrings whose first line begins or turns on a word that makes a riddle of it."""
    for line, text in source.docstrings():
        first = text.strip().partition("\n")[0]
        if (found := _RIDDLES.search(first) or _FIRST_IN_DOCSTRINGS.match(first)) is not None:
            yield f"{source}:{line}: {found[0]!r} in {first!r}"


def loop_faults(source: Source) -> Iterator[str]:
    """Yield the loops whose variable is `each` or `one`, not named after the thing."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            names = {name.id: name.lineno for name in ast.walk(node.target) if isinstance(name, ast.Name)}
            for name in _NAMELESS & names.keys():
                yield f"{source}:{names[name]}: {name!r} runs over {ast.unparse(node.iter)[:60]!r}"


def is_too_long(source: Source) -> bool:
    """Return whether a module is longer than a reason in its docstring allows."""
    allowed = MAX_REASONED_MODULE_LINES if gives_reason(source.docstring) else MAX_MODULE_LINES
    return len(source.lines) > allowed


def gives_reason(docstring: str) -> bool:
    """Return whether a docstring says why there are so many lines."""
    return SIZE_REASON in " ".join(docstring.split())


def is_too_small(source: Source) -> bool:
    """Return whether a module belongs into its neighbour: small, no message, entry point or façade."""
    return (
        not source.is_native
        and len(source.lines) < MIN_MODULE_LINES
        and source.path.name not in ("__init__.py", "__main__.py", "pytest_plugin.py")
        and "messages" not in source.path.parts
        and not _is_handler(source)
        and source.defines_something()
    )


def _is_handler(source: Source) -> bool:
    """Return whether a module is the entry point of one API, which a route imports by its name."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    is_entry = any(isinstance(node, functions) and node.name == "handle" for node in source.tree.body)
    return "api" in source.path.parts and is_entry


def subjects_since(commit: str) -> list[tuple[str, str]]:
    """Return the commits after `commit` with their subjects; none where the history does not reach so far."""
    command = ["git", "log", "--no-merges", "--format=%h %s", f"{commit}..HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def word_faults(packages: Iterable[str], since: str) -> Iterator[str]:
    """Yield what breaks the rules for words: commit subjects, and docstrings of some packages."""
    for commit, subject in subjects_since(since):
        yield from (f"{commit} {subject!r}: {fault}" for fault in subject_faults(subject))
    folders = {ROOT / "packages" / name for name in packages}
    for source in package_sources():
        if folders.intersection(source.path.parents):
            yield from docstring_faults(source)


if __name__ == "__main__":
    faults = list(word_faults(CLEAN_PACKAGES, FIRST_COMMIT))
    print("\n".join(faults) or "The words of commits and docstrings keep the rules.")
    sys.exit(bool(faults))
