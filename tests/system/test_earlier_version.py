"""The earlier version with which a cluster begins that is upgraded comes from this repository's history."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from earlier_version import NotInstalled, unpack


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose file `version` has changed once."""
    made = tmp_path / "made"
    _git("init", "--quiet", "--initial-branch", "main", str(made))
    for version in ("first", "second"):
        (made / "version").write_text(version)
        _git("-C", str(made), "add", "version")
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
        _git("-C", str(made), *who, "commit", "--quiet", "-m", version)
    return made


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True, timeout=60).stdout


def _first(repository: Path) -> str:
    return _git("-C", str(repository), "rev-parse", "main~1").strip()


def test_the_files_are_those_of_the_commit(repository: Path, tmp_path: Path) -> None:
    unpack(_first(repository), tmp_path / "tree", repository)

    assert (tmp_path / "tree/version").read_text() == "first"


def test_a_shallow_clone_is_told_how_to_get_the_commit(repository: Path, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    _git("clone", "--quiet", "--depth", "1", repository.as_uri(), str(shallow))

    with pytest.raises(NotInstalled, match="git fetch --unshallow"):
        unpack(_first(repository), tmp_path / "tree", shallow)

    assert not (tmp_path / "tree").exists()


def test_what_is_no_clone_is_told_the_same(tmp_path: Path) -> None:
    with pytest.raises(NotInstalled, match="--from REF"):
        unpack("main", tmp_path / "tree", tmp_path)
