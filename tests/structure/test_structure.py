"""Rules for the shape of the source that no linter checks: sizes, and imports that run in a circle."""

from __future__ import annotations

from typing import Final

import pytest

from structure.house_rules import is_too_long
from structure.numbers import long_functions, python
from structure.protocols import written_through
from structure.sources import (
    ROOT,
    Source,
    all_sources,
    cycles,
    imported_modules,
    module_name,
    package_sources,
    stubs,
)

CYCLE_REASON: Final = "import cycle"


def test_a_module_over_500_lines_gives_the_reason_in_its_docstring_and_none_has_over_800() -> None:
    too_long = [f"{source}: {len(source.lines)} lines" for source in all_sources() if is_too_long(source)]

    assert not too_long, "\n".join(too_long)


def test_a_function_over_50_lines_gives_the_reason_in_its_docstring() -> None:
    too_long = long_functions(all_sources(), reasoned=False)

    assert not too_long, "\n".join(too_long)


def test_no_protocol_of_one_implementer_is_written_through() -> None:
    found = written_through([*python(package_sources()), *stubs()])

    assert not found, found


PACKAGES: Final = tuple(sorted(path.parent.name for path in ROOT.glob("packages/*/src")))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_modules_import_each_other_in_a_cycle(package: str) -> None:
    sources = {module_name(source): source for source in _of_package(package)}
    known = set(sources)
    graph = {name: imported_modules(source, known) for name, source in sources.items()}

    unexplained = [
        cycle
        for cycle in cycles(graph)
        if not any(CYCLE_REASON in " ".join(sources[name].docstring.split()) for name in cycle)
    ]

    assert not unexplained, "\n".join(" <-> ".join(cycle) for cycle in unexplained)


def _of_package(package: str) -> list[Source]:
    start = f"packages/{package}/"
    return [source for source in package_sources() if str(source).startswith(start) and not source.is_native]
