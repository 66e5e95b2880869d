"""The files that `--secure` makes once in a data directory, and later starts read or renew."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509

from ottla.broker.config import ConfigError, load_broker_config
from ottla.broker.controller.testing import run_in_virtual_time
from ottla.broker.server.secure_files import SecureFiles, keep_valid, renew
from ottla.broker.server.secure_setup import introduction, prepare, secured_flags
from ottla.client.config import ClientConfig
from ottla.client.profiles import read_profile, read_profiles
from ottla.client.settings import from_properties


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "profiles.toml"
    monkeypatch.setenv("OTTLA_PROFILES", str(path))
    return path


def handshake(files: SecureFiles, host: str) -> None:
    """Connect a client that trusts the authority to a server of the certificate. Raises SSLError."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate)
    client = ssl.create_default_context(cafile=str(files.authority))
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(5):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert sides[0].version() == "TLSv1.3"


def test_secrets_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    files = prepare(tmp_path / "data", []).files

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files.directory.iterdir()}
    assert modes.pop("ca.pem") == 0o644
    assert set(modes) == {
        "ca.key", "broker.pem", "broker.json", "admin.password", "broker.password", "delegation-tokens.key",
    }  # fmt: skip
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(files.directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "kafka.example.com", "10.1.2.3"])
def test_the_certificate_is_for_this_machine_and_the_hosts_given(tmp_path: Path, host: str) -> None:
    files = prepare(tmp_path / "data", ["kafka.example.com", "10.1.2.3"]).files

    handshake(files, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, "another.example.com")


def contents(files: SecureFiles) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in files.directory.iterdir()}


def test_a_later_start_reads_what_the_first_made(tmp_path: Path) -> None:
    first = prepare(tmp_path / "data", ["a.example.com"])
    before = contents(first.files)

    again = prepare(tmp_path / "data", ["a.example.com"])

    assert (first.is_new, again.is_new) == (True, False)
    assert contents(again.files) == before


@pytest.mark.parametrize("reason", ["ends soon", "another host", "damaged", "missing"])
def test_a_certificate_that_does_not_serve_is_made_new_by_the_same_authority(
    tmp_path: Path, reason: str
) -> None:
    files = prepare(tmp_path / "data", []).files
    before = contents(files)
    if reason == "ends soon":
        facts = json.loads(files.facts.read_text())
        files.facts.write_text(json.dumps(facts | {"ends_ms": 1}))
    elif reason == "damaged":
        files.facts.write_text("{")
    elif reason == "missing":
        files.certificate.unlink()

    prepare(tmp_path / "data", ["new.example.com"] if reason == "another host" else [])

    after = contents(files)
    assert {name for name in after if after[name] != before[name]} >= {"broker.pem"}
    assert after["ca.pem"] == before["ca.pem"]
    assert after["admin.password"] == before["admin.password"]
    handshake(files, "localhost")


def test_a_broker_that_runs_beyond_the_end_of_its_certificate_has_a_valid_one_every_day(
    tmp_path: Path,
) -> None:
    setup = prepare(tmp_path / "data", ["a.example.com"])
    files, began_ms = setup.files, int((time.time() + 650 * 86_400) * 1_000)  # 170 days before its end
    left_days: list[float] = []
    made: set[int] = set()

    async def on_this_thread(work: Callable[..., bool], *arguments: object) -> bool:
        return work(*arguments)

    async def months() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()

        def now_ms() -> int:
            return began_ms + int((loop.time() - began_s) * 1_000)

        keeping = loop.create_task(keep_valid(files, now_ms, on_this_thread))
        for _ in range(190):
            await asyncio.sleep(24 * 3_600)
            certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
            made.add(certificate.serial_number)
            left_days.append((certificate.not_valid_after_utc.timestamp() * 1_000 - now_ms()) / 86_400_000)
        keeping.cancel()

    run_in_virtual_time(months())

    assert min(left_days) > 29
    assert len(made) == 2
    names = x509.load_pem_x509_certificate(files.certificate.read_bytes()).extensions
    found = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "a.example.com" in found.get_values_for_type(x509.DNSName)


def test_the_last_certificate_ends_with_its_authority_which_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = prepare(tmp_path / "data", []).files
    authority = x509.load_pem_x509_certificate(files.authority.read_bytes())
    ends_ms = int(authority.not_valid_after_utc.timestamp() * 1_000)
    month_ms = 30 * 86_400_000

    assert renew(files, ends_ms - 2 * month_ms)
    last = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    assert last.not_valid_after_utc == authority.not_valid_after_utc
    assert not renew(files, ends_ms - month_ms - 1)
    assert not caplog.records
    assert not renew(files, ends_ms - month_ms + 1), "another one would not last longer"

    assert [record.message for record in caplog.records] == ["local authority ends"]


def test_a_renewal_without_the_key_of_the_authority_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setup = prepare(tmp_path / "data", [])
    setup.files.authority_key.unlink()

    async def on_this_thread(work: Callable[..., bool], *arguments: object) -> bool:
        return work(*arguments)

    async def hours() -> None:
        at_the_end_ms = json.loads(setup.files.facts.read_text())["ends_ms"]
        keeping = asyncio.ensure_future(keep_valid(setup.files, lambda: at_the_end_ms, on_this_thread))
        await asyncio.sleep(2.5 * 3_600)
        keeping.cancel()

    run_in_virtual_time(hours())

    assert [record.message for record in caplog.records] == ["certificate not renewed"] * 2


def test_the_settings_are_those_of_a_broker_that_asks_everyone(tmp_path: Path) -> None:
    setup, flags = secured_flags(tmp_path / "data", {"num.partitions": "3"}, {"num.partitions": "3"})

    config = load_broker_config(flags=flags | {"log.dirs": str(tmp_path / "data")}).config
    assert [listener.security_protocol for listener in config.parsed_listeners] == ["SASL_SSL"]
    assert config.authorizer_class_name.endswith("AclAuthorizer")
    assert config.num_partitions == 3
    password = setup.files.password("broker").read_text().strip()
    assert password not in repr(config)


def test_super_users_of_the_user_are_kept_beside_ours(tmp_path: Path) -> None:
    _, flags = secured_flags(tmp_path / "data", {"super.users": "User:ops"}, {"super.users": "User:ops"})

    assert flags["super.users"] == "User:admin;User:broker;User:ops"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"listeners": "PLAINTEXT://:9092"}, "listeners must be SASL_SSL://host:port with --secure"),
        ({"listeners": "SASL_SSL://:1,SSL://:2"}, "not SSL://:2"),
        ({"zookeeper.connect": "zk:2181"}, "zookeeper.connect must not be set with --secure"),
    ],
)
def test_settings_that_would_leave_a_door_open_are_refused(
    tmp_path: Path, given: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        secured_flags(tmp_path / "data", given, given)
    assert not (tmp_path / "data").exists()


def test_the_introduction_shows_no_secret_and_the_profile_connects(tmp_path: Path) -> None:
    setup = prepare(tmp_path / "data", [])
    password = setup.files.password("admin").read_text().strip()

    words = introduction(setup, "0.0.0.0:9092")

    assert password not in words
    assert f"--command-config {setup.files.java_properties} " in words
    assert f"kcat -F {setup.files.librdkafka_properties} " in words
    config = read_profile("local").config()
    assert config.bootstrap_servers == "localhost:9092"
    assert config.security.sasl_password == password
    again = introduction(prepare(tmp_path / "data", []), "0.0.0.0:9092")
    assert again == "Secured: connect with --profile local\n"


def test_the_properties_log_in_and_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    setup = prepare(tmp_path / "Düsseldorf data", [])
    introduction(setup, "127.0.0.1:9092")
    files = setup.files
    first = {path: path.stat() for path in (files.java_properties, files.librdkafka_properties)}

    for path, status in first.items():
        assert stat.S_IMODE(status.st_mode) == 0o600
        config = from_properties(ClientConfig, path)
        assert (config.bootstrap_servers, config.security.security_protocol) == ("127.0.0.1:9092", "SASL_SSL")
        assert config.security.sasl_password == files.password("admin").read_text().strip()
        assert config.security.ssl_cafile == str(files.authority)
    assert files.java_properties.read_text().isascii()  # as Java reads it
    introduction(setup, "127.0.0.1:9092")
    assert {path: path.stat().st_ino for path in first} == {path: of.st_ino for path, of in first.items()}
    introduction(setup, "127.0.0.1:9093")
    assert from_properties(ClientConfig, files.java_properties).bootstrap_servers == "127.0.0.1:9093"


def test_properties_that_cannot_be_written_are_named_and_the_broker_serves(tmp_path: Path) -> None:
    setup = prepare(tmp_path / "data", [])
    setup.files.java_properties.mkdir()

    words = introduction(setup, "127.0.0.1:9092")

    assert f"No properties were written into {setup.files.directory}: Is a directory\n" in words
    assert read_profile("local").servers == "127.0.0.1:9092"


def test_a_directory_that_others_can_enter_is_closed_and_another_users_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "data" / "secure"
    directory.mkdir(parents=True)
    directory.chmod(0o777)

    prepare(tmp_path / "data", [])

    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    if os.geteuid() == 0:
        os.chown(directory, 12_345, -1)
        with pytest.raises(ConfigError, match=r"must not have .*secure of user 12345: chown it"):
            prepare(tmp_path / "data", [])


@pytest.mark.parametrize("damage", ["a directory", "no TOML"])
def test_a_profile_that_cannot_be_written_is_named_and_the_broker_serves(
    tmp_path: Path, profiles: Path, damage: str
) -> None:
    if damage == "a directory":
        profiles.mkdir()
    else:
        profiles.write_text("[")

    words = introduction(prepare(tmp_path / "data", []), "127.0.0.1:9092")

    assert f"\nNo profile was written: {profiles}" in words
    assert "librdkafka" in words


def test_the_profile_of_another_broker_is_kept(tmp_path: Path) -> None:
    introduction(prepare(tmp_path / "one", []), "127.0.0.1:9092")
    introduction(prepare(tmp_path / "two", []), "127.0.0.1:9093")

    assert {name: found.settings["bootstrap_servers"] for name, found in read_profiles().items()} == {
        "local": "127.0.0.1:9092",
        "local-9093": "127.0.0.1:9093",
    }
