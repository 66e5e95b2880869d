"""Install an earlier commit into an environment of its own: with git, PyPI and a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
EARLIER: Final = "e30c9bfcf7d904c67627e1504b831262b3d88164"
"""The first commit whose howto runs a cluster on several machines, and so the first that one would upgrade.

It is older than everything that has changed since on the disk and between brokers: log compaction with its
checkpoint, transactions with their topic and markers, the batches that a producer's snapshot lacks, moves
between log directories that survive a failed one, and the requests of Kafka's levels above 2.8.
"""
PACKAGES: Final = ("protocol", "zookeeper", "client", "broker")
"""Packages of a machine with brokers, each after those that it depends on."""
_BOUND_S: Final = 1_800


class NotInstalled(RuntimeError):
    """The earlier version cannot be had; the message is one line that says what to do."""


def unpack(ref: str, folder: Path, clone: Path = ROOT) -> None:
    """Write the files of a commit into a folder. Raises NotInstalled where the clone does not have it."""
    known = _git(clone, "cat-file", "-e", f"{ref}^{{commit}}")
    if known.returncode:
        raise NotInstalled(
            f"commit {ref} is not in {clone}: `git fetch --unshallow` completes a shallow clone, "
            "`git fetch origin main` an old one, and --from REF names another version to begin with"
        )
    folder.mkdir(parents=True)
    archive = folder / "tree.tar"
    made = _git(clone, "archive", "-o", str(archive), ref)
    if made.returncode:
        raise NotInstalled(f"git archive {ref}: {made.stderr.strip()}")
    shutil.unpack_archive(archive, folder)


def _git(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", "-C", str(clone), *words], capture_output=True, text=True, timeout=60, check=False
        )
    except FileNotFoundError:
        raise NotInstalled("the earlier version comes from the history of this clone: install git") from None


def install(ref: str, folder: Path) -> Path:
    """Install a commit below a folder, with what it was pinned to; return its Python. Raises NotInstalled."""
    tree = folder / "tree"
    unpack(ref, tree)
    _run(sys.executable, "-m", "venv", str(folder / "environment"))
    python = folder / "environment/bin/python"
    pip = (
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-c",
        "constraints.txt",
    )
    _run(*pip, *build_requirements(tree), cwd=tree)
    for name in PACKAGES:  # one after the other: compiled packages are built against those before them
        _run(*pip, "--no-build-isolation", f"./packages/{name}", cwd=tree)
    return python


def build_requirements(tree: Path) -> list[str]:
    """List what the packages of a tree are built with."""
    needed: set[str] = set()
    for name in PACKAGES:
        with (tree / "packages" / name / "pyproject.toml").open("rb") as file:
            needed.update(tomllib.load(file)["build-system"]["requires"])
    return sorted({*needed, "wheel"})


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(
        command, cwd=cwd, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=_BOUND_S, check=False,
    )  # fmt: skip
    if done.returncode:
        words = " ".join(command)
        raise NotInstalled(f"{words} ended with status {done.returncode}:\n{done.stdout[-3000:]}")


def _environment() -> dict[str, str]:
    """Return the environment without the paths of this tree, which would hide the earlier version."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
