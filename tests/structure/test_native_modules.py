from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / "packages"
SHARED = PACKAGES / "native_modules.py"


def run_setup(package: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", *arguments],
        cwd=package, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_packages_with_compiled_modules_have_the_same_setup() -> None:
    compiled = {path.relative_to(PACKAGES).parts[0] for path in PACKAGES.glob("*/src/**/*.pyx")}
    contents = {name: (PACKAGES / name / "setup.py").read_text(encoding="utf-8") for name in compiled}

    assert len(contents) == 5
    assert len(set(contents.values())) == 1
    assert {path.parent.name for path in PACKAGES.glob("*/setup.py")} == compiled


def test_wheels_bring_no_sources_of_compiled_modules_but_declarations_of_the_protocol() -> None:
    for setup in PACKAGES.glob("*/setup.py"):
        project = tomllib.loads(setup.with_name("pyproject.toml").read_text(encoding="utf-8"))
        (excluded,) = project["tool"]["setuptools"]["exclude-package-data"].values()
        declarations = {"*.h", "*.pxd"} if setup.parent.name == "protocol" else set()

        assert {*excluded} == {"*.c", "*.h", "*.pyx", "*.pxi", "*.pxd"} - declarations, setup


def test_an_sdist_brings_what_its_setup_needs(tmp_path: Path) -> None:
    shutil.copytree(PACKAGES / "streams", tmp_path / "packages" / "streams")
    shutil.copytree(PACKAGES / "protocol" / "src", tmp_path / "packages" / "protocol" / "src")
    shutil.copy(SHARED, tmp_path / "packages")

    run_setup(tmp_path / "packages" / "streams", "sdist", "-d", str(tmp_path / "dist"))

    (made,) = (tmp_path / "dist").iterdir()
    with tarfile.open(made) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert (unpacked / SHARED.name).read_bytes() == SHARED.read_bytes()
    # Far from any clone it says which ottla-protocol it needs, or finds the installed one.
    run_setup(unpacked, "egg_info")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A clone with one package, which has one module to compile."""
    (tmp_path / "pyproject.toml").touch()
    packages = tmp_path / "packages"
    declarations = packages / "protocol" / "src" / "ottla" / "protocol" / "records"
    module = packages / "toy" / "src" / "ottla" / "toy"
    declarations.mkdir(parents=True)
    module.mkdir(parents=True)
    shutil.copy(SHARED, packages)
    shutil.copy(PACKAGES / "streams" / "setup.py", packages / "toy")
    for folder in (declarations.parent, declarations, module):
        (folder / "__init__.py").touch()
    (declarations / "_batch.pxd").write_text("cdef enum:\n    ANSWER = 41\n")
    (module / "_answer.pyx").write_text(
        "from ottla.protocol.records._batch cimport ANSWER\n\n\ndef answer():\n    return ANSWER\n"
    )
    (packages / "toy" / "pyproject.toml").write_text(
        '[project]\nname = "toy"\nversion = "1"\ndependencies = ["ottla-protocol"]\n'
        '[tool.setuptools.packages.find]\nwhere = ["src"]\nnamespaces = true\n'
        '[tool.setuptools.exclude-package-data]\n"*" = ["*.c", "*.pyx"]\n'
    )
    return packages / "toy"


def test_a_clone_compiles_a_module_once_until_it_or_a_declaration_changes(package: Path) -> None:
    def build() -> bytes:
        run_setup(package, "build_ext", "--inplace")
        (module,) = package.glob("src/ottla/toy/_answer.*.*")
        return module.read_bytes()

    def kept() -> list[Path]:
        files = (package.parents[1] / "build" / "native").iterdir()
        return sorted(path for path in files if path.suffix != ".c")

    first = build()
    (before,) = kept()
    before.write_bytes(b"compiled before")
    copied = build()
    declaration = package.parent / "protocol/src/ottla/protocol/records/_batch.pxd"
    declaration.write_text("cdef enum:\n    ANSWER = 42\n")
    changed = build()

    assert copied == b"compiled before"
    assert changed not in (first, copied)
    assert len(kept()) == 2


def test_c_is_generated_once_for_all_flags_and_a_wheel_built_once_for_each_state_of_its_sources(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(PACKAGES / "clone_wheels.py", package.parent)

    def built() -> Path:
        done = subprocess.run(
            [sys.executable, package.parent / "clone_wheels.py", "toy"],
            capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.strip())

    first = built()
    with monkeypatch.context() as other_flags:
        other_flags.setenv("CFLAGS", "-O1")
        compiling = [sys.executable, package.parent / SHARED.name, package]
        compiled = subprocess.run(compiling, capture_output=True, text=True, timeout=200, check=True)
    again, unchanged_since = built(), first.stat().st_mtime_ns
    (package / "src" / "ottla" / "toy" / "more.py").write_text("MORE = 1\n")
    # As the folder of a wheel that is built beside this one, and ends between two looks at it.
    (package.parents[1] / "build" / "wheels" / "ended").symlink_to("nowhere")
    changed = built()

    assert compiled.stdout == "compiled 1 of 1: ottla.toy._answer\n"
    native = [*(package.parents[1] / "build" / "native").iterdir()]
    assert sorted(path.suffix == ".c" for path in native) == [False, False, True]
    assert (again, again.stat().st_mtime_ns) == (first, unchanged_since)
    versions = [version_of(wheel) for wheel in (first, changed)]
    assert re.fullmatch(r"1\+clone\.g[0-9a-f]{8}", versions[0])
    assert versions[0] != versions[1]
    with zipfile.ZipFile(changed) as archive:
        names = archive.namelist()
        recorded = archive.read(next(name for name in names if name.endswith("/RECORD"))).decode()
    assert {line.partition(",")[0] for line in recorded.splitlines()} == {*names}
    assert any(re.fullmatch(r"ottla/toy/_answer\..*(so|pyd)", name) for name in names)
    assert "ottla/toy/more.py" in names
    assert not any(name.endswith((".pyx", ".c")) for name in names)


def version_of(wheel: Path) -> str:
    """Return the version in the metadata of a wheel, which is that of its name."""
    version = wheel.name.split("-")[1]
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"toy-{version}.dist-info/METADATA").decode()
    assert f"\nVersion: {version}\n" in metadata
    return version
