"""The secret of an embedded coordinator: its files, both ways to show it, and nobody else."""

from __future__ import annotations

import asyncio
import os
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.zookeeper.cli import zookeeper
from ottla.zookeeper.digest_md5 import DigestMd5Client, DigestMd5Server, RefusedLogin, directives_of
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.embedded.access import (
    access_once_started,
    access_to,
    is_directory,
    read_or_make_secret,
    write_address,
)
from ottla.zookeeper.embedded.data_tree import Tree
from ottla.zookeeper.embedded.request_processor import Client, RequestProcessor
from ottla.zookeeper.errors import Unavailable, UnsafeSecret


def readable(path: Path) -> None:
    path.chmod(0o640)


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def too_short(path: Path) -> None:
    path.write_text("hunter2\n")


def not_text(path: Path) -> None:
    path.write_bytes(bytes(range(128, 192)))


@pytest.mark.parametrize(
    ("spoil", "advice"),
    [
        (readable, "mode 0640): chmod 600 it"),
        (linked, "symbolic link"),
        (a_directory, "not a file"),
        (a_pipe, "not a file"),
        (too_short, "no secret of 16"),
        (not_text, "no secret of 16"),
    ],
)
def test_a_secret_that_others_may_know_is_refused_in_one_line(
    tmp_path: Path, spoil: Callable[[Path], None], advice: str
) -> None:
    read_or_make_secret(tmp_path)
    write_address(tmp_path, "127.0.0.1:1")
    spoil(tmp_path / "secret")

    for ask in (read_or_make_secret, access_to):
        with pytest.raises(UnsafeSecret, match=re.escape(advice)) as refused:
            ask(tmp_path)
        assert str(refused.value).startswith(f"{tmp_path / 'secret'}: ")
        assert "\n" not in str(refused.value)
        assert "hunter2" not in str(refused.value)


def test_an_address_that_was_swapped_gets_no_secret(tmp_path: Path) -> None:
    read_or_make_secret(tmp_path)
    write_address(tmp_path, "10.0.0.1:2181")
    with pytest.raises(Unavailable, match="no address of a coordinator"):
        access_to(tmp_path)
    (tmp_path / "address").unlink()
    (tmp_path / "address").symlink_to("/etc/hostname")
    with pytest.raises(UnsafeSecret, match="symbolic link"):
        access_to(tmp_path)


def test_a_directory_from_before_the_secret_gets_one_and_is_closed_to_others(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    old.chmod(0o775)  # as a umask of 002 leaves it

    secret = read_or_make_secret(old)

    assert read_or_make_secret(old) == secret
    assert old.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in old.iterdir()} == {
        "secret": 0o600,
        "jaas.conf": 0o600,
    }


async def test_a_coordinator_that_starts_later_is_waited_for(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as tasks:
        found = tasks.create_task(access_once_started(tmp_path, 30))
        await asyncio.sleep(0)
        secret = read_or_make_secret(tmp_path)
        write_address(tmp_path, "127.0.0.1:2181")
    assert found.result() == ("127.0.0.1:2181", (("digest", f"ottla:{secret}"),))

    with pytest.raises(Unavailable, match="has been started"):
        await access_once_started(tmp_path / "never", 0)


@pytest.mark.parametrize(
    ("connect", "expected"),
    [("/data/zk", True), ("./zk", True), ("~/zk", True), ("zk:2181/kafka", False), ("[::1]:2181", False)],
)
def test_a_directory_in_place_of_an_address_is_known_by_its_first_letter(
    connect: str, expected: bool
) -> None:
    assert is_directory(connect) is expected


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", ""])
async def test_a_coordinator_listens_on_loopback_only(host: str) -> None:
    with pytest.raises(Unavailable, match="listens on 127"):
        await EmbeddedCoordinator(host=host).__aenter__()


# -- DIGEST-MD5


def test_both_sides_of_a_login_show_that_they_know_the_password() -> None:
    client, server = DigestMd5Client("ottla", "s" * 16), DigestMd5Server("ottla", "s" * 16)

    challenge = server.step(client.step(b""))
    proof = server.step(client.step(challenge))
    assert client.step(proof) == b""

    assert client.is_complete
    assert server.is_complete
    assert "ssss" not in repr(client) + repr(server)


def test_the_example_of_the_rfc_gives_the_same_bytes() -> None:
    client = DigestMd5Client("chris", "secret", service="imap", new_nonce=lambda: "OA6MHXh6VqTrRk")
    challenge = (
        b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'
    )
    said = client.step(challenge)
    # RFC 2831, section 4, with the digest-uri of that server.
    assert directives_of(said)["digest-uri"] == "imap/zk-sasl-md5"
    server = DigestMd5Server("chris", "secret", new_nonce=lambda: "OA6MG9tEQGm2hh")
    server.step(b"")
    fixed = (
        b'charset=utf-8,username="chris",realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",nc=00000001,'
        b'cnonce="OA6MHXh6VqTrRk",digest-uri="imap/elwood.innosoft.com",'
        b"response=d388dad90d4bbd760a152321f2143af7,qop=auth"
    )
    assert server.step(fixed) == b"rspauth=ea40f60335c427b5527b84dbabcdfffd"


@pytest.mark.parametrize(
    ("user", "password"),
    [("ottla", "x" * 16), ("other", "s" * 16), ("", ""), ('q"uo\\te', "ключ"), ("ünïcode", "pässword")],
)
def test_odd_names_log_in_and_wrong_ones_do_not(user: str, password: str) -> None:
    client = DigestMd5Client(user, password)
    same = DigestMd5Server(user, password)
    assert same.step(client.step(same.step(b""))).startswith(b"rspauth=")

    other = DigestMd5Server("ottla", "s" * 16)
    with pytest.raises(RefusedLogin, match="wrong"):
        other.step(DigestMd5Client(user, password).step(other.step(b"")))
    with pytest.raises(RefusedLogin, match="over"):
        other.step(b"again")
    assert not other.is_complete


@pytest.mark.parametrize(
    "token",
    [
        b"\xff\xfe", b"=", b"a=" + b"x" * 5_000, b'nonce="open', b"nonce=1,nonce=2", b'nonce="a"b',
        b" ", b",",
        b'nonce="-",nc=00000001', b"response=",
    ],
)  # fmt: skip
def test_malformed_tokens_are_refused_by_both_sides(token: bytes) -> None:
    server = DigestMd5Server("ottla", "s" * 16)
    server.step(b"")
    with pytest.raises(RefusedLogin):
        server.step(token)
    assert not server.is_complete
    with pytest.raises(RefusedLogin):
        DigestMd5Client("ottla", "s" * 16).step(token)


def test_a_server_that_does_not_know_the_password_is_noticed() -> None:
    client, server = DigestMd5Client("ottla", "s" * 16), DigestMd5Server("ottla", "s" * 16)
    client.step(server.step(b""))
    with pytest.raises(RefusedLogin, match="the server"):
        client.step(b"rspauth=00000000000000000000000000000000")
    assert not client.is_complete


@pytest.mark.parametrize("seed", range(20))
def test_random_logins_admit_nobody_and_break_nothing(seed: int) -> None:
    rng = random.Random(seed)
    served = RequestProcessor(Tree(), lambda _: None, lambda: 0, secret="s" * 16)
    for _ in range(100):
        client = Client()
        served.frame_came(client, struct.pack("!iqiqi", 0, 0, 5_000, 0, 16) + bytes(16))
        for xid in range(rng.randrange(1, 6)):
            token = rng.choice([b"", rng.randbytes(rng.randrange(200)), b'nonce="x",response=', b"a" * 9_000])
            body = struct.pack("!iii", xid, rng.choice([100, 102]), rng.choice([len(token), -1, 2**31 - 1]))
            served.frame_came(client, body + token)
        assert not served.is_served(client)
        assert not client.identities
    assert not served.tree.sessions


# -- on the command line


def test_a_coordinator_for_other_machines_is_refused(tmp_path: Path) -> None:
    arguments = ["start", "--embedded", "--host", "0.0.0.0", "--data-dir", str(tmp_path / "zk")]
    refused = CliRunner().invoke(zookeeper, arguments)
    assert refused.exit_code == 1
    assert refused.output.startswith("Error: Unavailable: 0.0.0.0: the embedded coordinator listens on 127")


def test_without_a_secret_only_where_it_is_said() -> None:
    refused = CliRunner().invoke(zookeeper, ["start", "--no-secret"])
    assert refused.exit_code == 2
    assert "--embedded" in refused.output
