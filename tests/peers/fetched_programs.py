"""Programs in Go, JavaScript and Python with a library from the network, fetched once and cached.

Where the tool is missing, or the library cannot be fetched, the test that needs it is skipped and says why.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

FETCH_TIMEOUT_S: Final = 900


def go_program(source: Path, module: str, *parts: Path) -> Path:
    """Compile a Go program with one module (PATH@VERSION) from the module proxy; return the executable.

    `parts` are further files of the program.
    """
    _need("go", "golang-go")
    folder = _folder("go", b"".join(file.read_bytes() for file in (source, *parts)) + module.encode())
    program = folder / source.stem
    if not program.exists():
        for file in (source, *parts):
            (folder / file.name).write_bytes(file.read_bytes())
        (folder / "go.mod").write_text("module riding\n\ngo 1.21\n")
        _fetch(module, folder, "go", "get", module)
        _fetch(module, folder, "go", "get", ".")  # what the module needs itself
        _run(folder, "go", "build", "-o", f"{program}.new", ".")
        Path(f"{program}.new").rename(program)
    return program


def node_modules(package: str) -> Path:
    """Install one package (NAME@VERSION) from npm; return the folder that is to be `NODE_PATH`."""
    _need("node", "nodejs")
    _need("npm", "npm")
    folder = _folder("npm", package.encode())
    found, new = folder / "node_modules", folder / "new"
    if not found.exists():
        new.mkdir(exist_ok=True)
        quiet = ("--silent", "--no-audit", "--no-fund")
        _fetch(package, new, "npm", "install", *quiet, "--prefix", ".", package)
        (new / "node_modules").rename(found)
    return found


def compiled_package(
    package: str, source: str, commands: Iterable[Sequence[str]], needs: Mapping[str, str]
) -> Path:
    """Compile C sources in the folder `source` of an npm package (NAME@VERSION), which is not installed.

    Returns that folder. `needs` are the compilers, by the Debian packages that bring them.
    """
    for tool, debian in {"npm": "npm", **needs}.items():
        _need(tool, debian)
    folder = _folder("compiled", package.encode())
    found, new = folder / "package", folder / "new"
    if not found.exists():
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        _fetch(package, new, "npm", "pack", "--silent", package)
        (archive,) = new.glob("*.tgz")
        shutil.unpack_archive(archive, new, filter="data")
        for command in commands:
            _run(new / "package" / source, *command)
        (new / "package").rename(found)
    return found / source


def python_environment(*requirements: str, python: str = "") -> Path:
    """Install packages from PyPI into an environment of their own; return its interpreter.

    `python` is the version that the packages need, such as `3.10`; otherwise it is the one of the tests.
    """
    interpreter = _interpreter(python) if python else sys.executable
    folder = _folder("python", " ".join((interpreter, *requirements)).encode())
    found, new = folder / "environment", folder / "new"
    if not found.exists():
        shutil.rmtree(new, ignore_errors=True)
        _run(folder, interpreter, "-m", "venv", str(new))
        quiet = ("--quiet", "--disable-pip-version-check", "--only-binary=:all:")
        _fetch(
            " ".join(requirements),
            new,
            str(new / "bin" / "python"),
            "-m",
            "pip",
            "install",
            *quiet,
            *requirements,
        )
        new.rename(found)
    return found / "bin" / "python"


def _interpreter(version: str) -> str:
    """Return a Python of a version, from the path or from pyenv. Skips the test if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
    for candidate in candidates:
        asked = [candidate, "-c", "import sys, venv; print(sys.executable)"]  # pyenv's shims may refuse
        try:
            return subprocess.run(
                asked, capture_output=True, check=True, text=True, timeout=60
            ).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            continue
    pytest.skip(f"needs Python {version} (Debian: python{version}-venv, or pyenv)")


def _need(tool: str, debian: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"needs {tool} (Debian: {debian})")


def _folder(kind: str, content: bytes) -> Path:
    digest = hashlib.sha256(content).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"ottla-{kind}-{os.getuid()}-{digest}"
    folder.mkdir(exist_ok=True)
    return folder


def _fetch(what: str, folder: Path, *command: str) -> None:
    try:
        _run(folder, *command)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = (error.stderr or b"").decode(errors="replace").strip().splitlines() or [str(error)]
        pytest.skip(f"{what} cannot be fetched: {said[-1]}")


def _run(folder: Path, *command: str) -> None:
    subprocess.run(command, cwd=folder, capture_output=True, check=True, timeout=FETCH_TIMEOUT_S)
