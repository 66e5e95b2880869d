"""How large the product is, and what in it breaks the rules of the house: `nox -s numbers`.

python -m structure.numbers [--since COMMIT] [--list]
"""

from __future__ import annotations

import argparse
import tokenize
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from structure.house_rules import (
    FIRST_COMMIT,
    MAX_FUNCTION_LINES,
    MAX_MODULE_LINES,
    MIN_MODULE_LINES,
    docstring_faults,
    gives_reason,
    is_too_small,
    loop_faults,
    subject_faults,
    subjects_since,
)
from structure.protocols import written_through
from structure.sources import ROOT, Source, package_sources, stubs

Row = tuple[str, Callable[[Sequence[Source]], int]]

NATIVE_SUFFIXES: Final = (".pyx", ".pxd", ".pxi", ".h")


def main() -> None:
    """Print the numbers of each package and of all, then those of the whole tree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--since", default=FIRST_COMMIT, help="Check the subjects of later commits.")
    parser.add_argument("--list", action="store_true", help="List what is counted, too.")
    given = parser.parse_args()
    by_package: dict[str, list[Source]] = {}
    for source in package_sources():
        by_package.setdefault(source.path.relative_to(ROOT).parts[1], []).append(source)
    names = sorted(by_package)
    print_row("", [*names, "all"])
    for label, count in ROWS:
        counts = [count(by_package[name]) for name in names]
        print_row(label, [*counts, sum(counts)])
    everything = [source for found in by_package.values() for source in found]
    parts = [*(by_package[name] for name in names), everything]
    per_100 = [f"{100 * comment_lines(found) / lines(python(found)):.1f}" for found in parts]
    print_row("comment lines per 100", per_100)
    print()
    for label, found in findings(everything, given.since).items():
        print(f"{label}: {len(found)}")
        if given.list:
            print("".join(f"    {line}\n" for line in found), end="")


def python(sources: Iterable[Source]) -> list[Source]:
    """Return the sources that are Python."""
    return [source for source in sources if not source.is_native]


def lines(sources: Iterable[Source]) -> int:
    """Count lines."""
    return sum(len(source.lines) for source in sources)


def native_lines(sources: Sequence[Source]) -> int:
    """Count lines of Cython and of C headers."""
    roots = {source.path.parents[len(source.path.relative_to(ROOT).parts) - 4] for source in sources}
    files = [path for root in roots for path in root.rglob("*") if path.suffix in NATIVE_SUFFIXES]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def comment_lines(sources: Iterable[Source]) -> int:
    """Count lines of Python that have a comment, linters' marks not counted."""
    count = 0
    for source in python(sources):
        with source.path.open("rb") as file:
            tokens = tokenize.tokenize(file.readline)
            texts = [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
        count += sum(not text.startswith(("noqa", "type:", "fmt:")) for text in texts)
    return count


def long_modules(sources: Iterable[Source], *, reasoned: bool) -> list[str]:
    """Return the modules over the limit, with a reason or without."""
    return [
        f"{source}: {len(source.lines)} lines"
        for source in sources
        if len(source.lines) > MAX_MODULE_LINES and gives_reason(source.docstring) == reasoned
    ]


def long_functions(sources: Iterable[Source], *, reasoned: bool) -> list[str]:
    """Return the functions over the limit, with a reason or without."""
    return [
        f"{source}:{function.first_line} {function.name}: {function.lines} lines"
        for source in sources
        for function in source.functions()
        if function.lines > MAX_FUNCTION_LINES and gives_reason(function.docstring) == reasoned
    ]


def riddles(sources: Iterable[Source]) -> list[str]:
    """Return the docstrings that begin or turn on a word of the list."""
    return [fault for source in python(sources) for fault in docstring_faults(source)]


def nameless(sources: Iterable[Source]) -> list[str]:
    """Return the loops whose variable is not named after the thing."""
    return [fault for source in python(sources) for fault in loop_faults(source)]


def findings(sources: Sequence[Source], since: str) -> dict[str, list[str]]:
    """Return what the rules of the house find in the whole tree."""
    through = written_through([*python(sources), *stubs()])
    module, function = f"modules over {MAX_MODULE_LINES} lines", f"functions over {MAX_FUNCTION_LINES} lines"
    return {
        f"{module} without a reason": long_modules(sources, reasoned=False),
        f"{module} with a reason": long_modules(sources, reasoned=True),
        f"{function} without a reason": long_functions(sources, reasoned=False),
        f"{function} with a reason": long_functions(sources, reasoned=True),
        f"modules under {MIN_MODULE_LINES} lines that are no message, entry point or façade": [
            f"{source}: {len(source.lines)} lines" for source in sources if is_too_small(source)
        ],
        "Protocols of one implementer that are written through": [
            f"{name}: {', '.join(places)}" for name, places in through.items()
        ],
        "docstrings that begin or turn on a riddle": riddles(sources),
        "loops whose variable is `each` or `one`": nameless(sources),
        f"commit subjects since {since} that break the rule": [
            f"{commit} {subject!r}: {fault}"
            for commit, subject in subjects_since(since)
            for fault in subject_faults(subject)
        ],
    }


def print_row(label: str, cells: Sequence[object]) -> None:
    """Print a label and right-aligned cells."""
    print(f"{label:<24}" + "".join(f"{cell:>10}" for cell in cells))


ROWS: Final[Sequence[Row]] = (
    ("modules", len),
    ("lines of Python", lambda sources: lines(python(sources))),
    ("lines of Cython and C", native_lines),
    (f"modules under {MIN_MODULE_LINES} lines", lambda sources: sum(map(is_too_small, sources))),
    ("riddles in docstrings", lambda sources: len(riddles(sources))),
    ("loops over each or one", lambda sources: len(nameless(sources))),
)

if __name__ == "__main__":
    main()
