"""Distributions: what each brings, as docs/design/dependencies.md has it, and the platforms of wheels."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from structure.sources import ROOT

PAGE = ROOT / "docs" / "design" / "dependencies.md"
PROJECTS = {
    project["name"]: (path.parent, project)
    for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
    for project in [tomllib.loads(path.read_text(encoding="utf-8"))["project"]]
}
OURS = frozenset(PROJECTS)
BACKPORTS = {"typing-extensions"}
"""Needed by old versions of Python alone."""
INSTALLED = {".py", ".so", ".pyd", ".pyi", ".typed", ".html", ".css", ".js", ".pxd", ".h"}
NOT_FOR_A_BROKER = {
    "rich", "rbloom", "msgspec", "httpx2", "ottla-producer", "ottla-consumer", "ottla-streams",
}  # fmt: skip


def requirements(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield what a distribution needs, of this tree or installed."""
    if name in PROJECTS:
        project = PROJECTS[name][1]
        optional = (line for extra in extras for line in project["optional-dependencies"][extra])
        yield from map(Requirement, [*project["dependencies"], *optional])
        return
    for requirement in map(Requirement, importlib.metadata.requires(name) or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield requirement


def brought_by(name: str) -> frozenset[str]:
    """Return the distributions that an environment has when one is installed, itself included."""
    known: set[tuple[str, frozenset[str]]] = set()
    waiting: list[tuple[str, frozenset[str]]] = [(name, frozenset())]
    while waiting:
        found = waiting.pop()
        if found not in known:
            known.add(found)
            waiting += [
                (canonicalize_name(need.name), frozenset(need.extras)) for need in requirements(*found)
            ]
    return frozenset(name for name, _ in known) - BACKPORTS


@cache
def installed_bytes(name: str) -> int:
    """Return what the files of a distribution have, without bytecode."""
    if name in PROJECTS:
        files = (PROJECTS[name][0] / "src").rglob("*")
        return sum(path.stat().st_size for path in files if path.suffix in INSTALLED)
    paths = [Path(str(file.locate())) for file in importlib.metadata.files(name) or ()]
    return sum(path.stat().st_size for path in paths if path.suffix != ".pyc" and path.exists())


def row(name: str) -> tuple[str, str, str, int]:
    """Return the row that the table should have."""
    brought = brought_by(name)
    siblings = ", ".join(sorted(other.removeprefix("ottla-") for other in brought & OURS - {name}))
    others = ", ".join(sorted(brought - OURS))
    return name, siblings or "-", others or "-", round(sum(map(installed_bytes, brought)) / 1e6)


def written_rows() -> dict[str, tuple[str, ...]]:
    """Return the cells of the table by package."""
    lines = re.findall(r"^\| `(ottla[a-z-]*)` \|(.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: tuple(cell.strip() for cell in cells.split("|")) for name, cells in lines}


def test_the_table_has_each_package() -> None:
    assert {*written_rows()} == OURS


@pytest.mark.parametrize("name", sorted(OURS))
def test_the_table_says_what_a_package_brings_and_weighs(name: str) -> None:
    _, siblings, others, megabytes = row(name)
    wanted = f"| `{name}` | {siblings} | {others} | {megabytes} |"

    written_siblings, written_others, written_megabytes = written_rows()[name]

    assert (written_siblings, written_others) == (siblings, others), wanted
    if sys.platform == "linux":  # a third: wheels differ between processors, and grow with each release
        assert int(written_megabytes) == pytest.approx(megabytes, rel=1 / 3, abs=1), wanted


def test_a_broker_alone_brings_no_client_library_and_nothing_to_draw_with() -> None:
    assert not brought_by("ottla-broker") & NOT_FOR_A_BROKER


PLATFORMS = {
    "linux": {
        f"{libc}_{processor}" for libc in ("manylinux", "musllinux") for processor in ("x86_64", "aarch64")
    },
    "macos": {"macosx_x86_64", "macosx_arm64"},
    "windows": {"win_amd64"},
}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_cibuildwheel_builds_a_wheel_for_each_python_and_platform(platform: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cibuildwheel", "--print-build-identifiers", "--platform", platform,
         "--config-file", "packages/cibuildwheel.toml", "packages/protocol"],
        cwd=ROOT, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    pythons = {f"cp3{minor}" for minor in (11, 12, 13, 14)}
    wanted = {f"{python}-{target}" for python in pythons for target in PLATFORMS[platform]}
    assert {*done.stdout.split()} == wanted
