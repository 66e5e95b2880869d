"""Profiles whose secrets are in the system's keyring."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ottla.client.cli import main
from ottla.client.profiles import ProfileError, read_profile

keyring = pytest.importorskip("keyring")
errors = pytest.importorskip("keyring.errors")
Backend: Any = pytest.importorskip("keyring.backend").KeyringBackend

LOGIN = 'security_protocol = "SASL_PLAINTEXT"\nsasl_username = "josef"\n'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OTTLA_PROFILES", str(tmp_path / "profiles.toml"))
    return tmp_path / "profiles.toml"


class Ring(Backend):  # type: ignore[misc]  # where it is missing it has no types
    """A keyring in memory, locked without entries."""

    priority = 1

    def __init__(self, **passwords: str) -> None:
        super().__init__()
        self._passwords = passwords

    def get_password(self, service: str, username: str) -> str | None:
        if not self._passwords:
            raise errors.KeyringLocked("the keyring is locked")
        return self._passwords.get(f"{service}_{username}")

    def set_password(self, service: str, username: str, password: str) -> None:
        raise NotImplementedError


@pytest.fixture
def ring() -> Iterator[Callable[[Ring], None]]:
    before = keyring.get_keyring()
    yield keyring.set_keyring
    keyring.set_keyring(before)


def test_a_secret_comes_from_the_keyring(file: Path, ring: Callable[[Ring], None]) -> None:
    ring(Ring(kafka_josef="p w"))
    added = CliRunner().invoke(
        main,
        [
            "profile", "add", "local", "-b", "there:1", "--security-protocol", "SASL_PLAINTEXT",
            "--username", "josef", "--password-keyring", "kafka/josef",
        ],
    )  # fmt: skip

    assert added.exit_code == 0, added.output
    assert read_profile("local").config().security.sasl_password == "p w"
    assert "p w" not in file.read_text()


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"kafka_anna": "p"}, "the keyring has no kafka/josef: `keyring set kafka josef` sets it"),
        ({}, "the keyring cannot be read: the keyring is locked"),
    ],
)
def test_a_keyring_without_the_secret_says_how_it_gets_there(
    file: Path, ring: Callable[[Ring], None], entries: dict[str, str], words: str
) -> None:
    ring(Ring(**entries))
    file.write_text(f'[local]\n{LOGIN}sasl_password = {{ keyring = "kafka/josef" }}\n')

    with pytest.raises(ProfileError, match=f"profile 'local', sasl_password: {words}"):
        read_profile("local").config()
