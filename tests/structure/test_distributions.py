"""Distributions: what each brings, as docs/design/dependencies.md has it, and the platforms of wheels."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

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


def module_of(path: Path) -> Any:
    """Import a script of .ci."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


release = module_of(ROOT / ".ci" / "release.py")


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def toy(tmp_path: Path) -> Any:
    """A package that can be released, in a clone with a sibling."""
    for name, needs in (("protocol", ""), ("toy", '"ottla-protocol>=0.1,<0.2"')):
        module = tmp_path / "packages" / name / "src" / "ottla" / name
        module.mkdir(parents=True)
        (module / "__init__.py").write_text('__version__ = "0.1.0"\n')
        folder = tmp_path / "packages" / name
        (folder / "pyproject.toml").write_text(
            f'[project]\nname = "ottla-{name}"\nversion = "0.1.0"\ndependencies = [{needs}]\n'
        )
        (folder / "CHANGELOG.md").write_text(f"# Changes\n\n{release.START}\n## 0.1.0 (2026-11-26)\n\n- x\n")
        (folder / "changes.d").mkdir()
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "begin")
    return release.Package(tmp_path / "packages" / "toy")


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_release_is_refused_with_a_line_for_each_thing_that_is_wrong(toy: Any) -> None:
    assert list(release.problems(toy)) == []

    git(toy.clone, "tag", "toy-v0.1.0")
    (toy.folder / "changes.d" / "+word.feature.md").write_text("A change.\n")
    replace(toy.folder / "CHANGELOG.md", "## 0.1.0", "## 0.0.9")
    replace(toy.folder / "src" / "ottla" / "toy" / "__init__.py", "0.1.0", "0.1.1")
    replace(toy.folder.parent / "protocol" / "pyproject.toml", "0.1.0", "0.2.0")

    dirty, taken, version, unfolded, changelog, sibling = release.problems(toy)
    assert dirty.startswith("the tree is not clean: commit packages/")
    assert taken == "the tag toy-v0.1.0 is taken: raise the version in packages/toy/pyproject.toml"
    assert version == "packages/toy/src/ottla/toy/__init__.py says 0.1.1, and pyproject.toml 0.1.0"
    assert unfolded == "1 changes are not in the changelog: nox -s changes -- toy 0.1.0"
    assert changelog == "CHANGELOG.md begins with 0.0.9, not with 0.1.0"
    assert sibling == "ottla-protocol<0.2,>=0.1 leaves out ottla-protocol 0.2.0 of this clone"


def test_a_wheel_for_one_machine_or_without_its_modules_is_refused(toy: Any, tmp_path: Path) -> None:
    (toy.folder / "src" / "ottla" / "toy" / "_fast.pyx").touch()
    wheel = tmp_path / "ottla_toy-0.1.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tests/test_toy.py", "")

    assert list(release.problems_of_wheel(toy, wheel)) == [
        f"{wheel.name} lacks ottla/toy/__init__.py",
        f"{wheel.name} has tests: tests/test_toy.py",
        f"{wheel.name} lacks compiled modules: ottla/toy/_fast",
        f"{wheel.name} is for this machine alone: auditwheel has not repaired it",
    ]


def test_an_sdist_without_sources_or_with_generated_ones_is_refused(toy: Any, tmp_path: Path) -> None:
    (toy.folder / "setup.py").touch()
    sdist = tmp_path / "ottla_toy-0.1.0.tar.gz"
    (tmp_path / "fast.c").touch()
    with tarfile.open(sdist, "w:gz") as archive:
        archive.add(tmp_path / "fast.c", "ottla_toy-0.1.0/src/fast.c")

    assert list(release.problems_of_sdist(toy, sdist)) == [
        f"{sdist.name} lacks pyproject.toml, src/ottla/toy/__init__.py",
        f"{sdist.name} lacks native_modules.py, without which it does not compile",
        f"{sdist.name} has generated files: src/fast.c",
    ]


def test_changes_are_folded_into_the_version_that_is_not_released_yet() -> None:
    empty = f"# Changes\n\n{release.START}"
    first = "## 0.1.0 (2026-11-26)\n\n### Features\n\n- A.\n\n### Bugfixes\n\n- B\n  goes on.\n"
    more = "## 0.1.0 (2026-11-27)\n\n### Bugfixes\n\n- C.\n\n### Misc\n\n- D.\n"
    next_one = "## 0.2.0 (2026-12-01)\n\n### Features\n\n- E.\n"

    folded = release.merged(release.merged(release.merged(empty, first), more), next_one)

    assert folded == (
        f"# Changes\n\n{release.START}\n{next_one}\n## 0.1.0 (2026-11-27)\n\n### Features\n\n- A.\n\n"
        "### Bugfixes\n\n- B\n  goes on.\n- C.\n\n### Misc\n\n- D.\n"
    )
    again = release.merged(folded, "## 0.2.0 (2026-12-02)\n\n### Features\n\n- F.\n")
    assert "- E.\n- F.\n\n## 0.1.0 (2026-11-27)\n" in again
