"""Rules for the shape of the source that no linter checks: sizes, and imports that run in a circle."""

from __future__ import annotations

from typing import Final

import pytest

from structure.sources import (
    ROOT,
    Source,
    all_sources,
    cycles,
    imported_modules,
    module_name,
    package_sources,
)

MAX_MODULE_LINES: Final = 500
MAX_FUNCTION_LINES: Final = 50
SIZE_REASON: Final = "lines because"
CYCLE_REASON: Final = "import cycle"


def test_a_module_over_500_lines_gives_the_reason_in_its_docstring() -> None:
    too_long = [
        f"{source}: {len(source.lines)} lines"
        for source in all_sources()
        if len(source.lines) > MAX_MODULE_LINES and SIZE_REASON not in " ".join(source.docstring.split())
    ]

    assert not too_long, "\n".join(too_long)


def test_no_function_has_more_than_50_lines() -> None:
    too_long = [
        f"{source}:{function.first_line} {function.name}: {function.lines} lines"
        for source in all_sources()
        for function in source.functions()
        if function.lines > MAX_FUNCTION_LINES
    ]

    assert not too_long, "\n".join(too_long)


PACKAGES: Final = tuple(sorted(path.parent.name for path in ROOT.glob("packages/*/src")))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_modules_import_each_other_in_a_cycle(package: str) -> None:
    sources = {module_name(one): one for one in _of_package(package)}
    known = set(sources)
    graph = {name: imported_modules(source, known) for name, source in sources.items()}

    unexplained = [
        cycle
        for cycle in cycles(graph)
        if not any(CYCLE_REASON in " ".join(sources[name].docstring.split()) for name in cycle)
    ]

    assert not unexplained, "\n".join(" <-> ".join(one) for one in unexplained)


def _of_package(package: str) -> list[Source]:
    start = f"packages/{package}/"
    return [one for one in package_sources() if str(one).startswith(start) and not one.is_native]
