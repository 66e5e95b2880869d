"""Programs in Go and JavaScript with a library from the network, fetched once and cached.

Where the tool is missing, or the library cannot be fetched, the test that needs it is skipped and says why.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import pytest

FETCH_TIMEOUT_S: Final = 900


def go_program(source: Path, module: str) -> Path:
    """Compile a Go program with one module (PATH@VERSION) from the module proxy; return the executable."""
    _need("go", "golang-go")
    folder = _folder("go", source.read_bytes() + module.encode())
    program = folder / source.stem
    if not program.exists():
        (folder / "main.go").write_bytes(source.read_bytes())
        (folder / "go.mod").write_text("module riding\n\ngo 1.21\n")
        _fetch(module, folder, "go", "get", module)
        _fetch(module, folder, "go", "get", ".")  # what the module needs itself
        _run(folder, "go", "build", "-o", f"{program}.new", "main.go")
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
