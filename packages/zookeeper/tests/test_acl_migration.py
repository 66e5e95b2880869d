"""Closing the znodes of a cluster and opening them again, with Apache's server."""

from __future__ import annotations

import asyncio
import re
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ottla.zookeeper import paths
from ottla.zookeeper.acl_migration import (
    LockedOut,
    check_lock_out,
    check_may_write,
    identities_of_brokers,
    migrate,
    own_identities,
    plan,
)
from ottla.zookeeper.cli import zookeeper
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.embedded.access import read_or_make_secret, write_address
from ottla.zookeeper.errors import NoAuth
from ottla.zookeeper.kazoo_session import KazooSession
from ottla.zookeeper.session import OPEN_ACL, Create
from ottla.zookeeper.testing import MemoryEnsemble

OURS = [("digest", "broker:secret")]
OURS_IN_ACLS = ("digest", paths.digest_identity(b"broker:secret"))
SINGLE = ("/config/users/u", "/config/topics/t0", "/consumers/g/ids", "/delegation_token/tokens/k", "/other")
_numbers = count(1)


def session_of(connect: str, credentials: list[tuple[str, str]]) -> KazooSession:
    return KazooSession(connect, credentials=credentials, connection_timeout_ms=60_000)


async def fill(session: KazooSession, topics: int = 3) -> None:
    for number in range(topics):
        await session.create(f"/brokers/topics/t{number}/partitions/0/state", b"{}", make_parents=True)
    for path in SINGLE:
        await session.create(path, b"{}", make_parents=True)
    await session.create("/brokers/ids", make_parents=True)
    await session.create("/ottla/config/topics", make_parents=True)


@pytest.fixture
async def connect(real_server: str) -> str:
    """The chroot of an open cluster of its own."""
    where = f"{real_server}/migrated-{next(_numbers)}"
    async with session_of(where, []) as session:
        await fill(session)
    return where


async def acl_of(session: KazooSession, path: str) -> set[tuple[int, str, str]]:
    return {tuple(entry) for entry in (await session.get_acl(path))[0]}  # type: ignore[misc]


@pytest.mark.java
async def test_a_tree_is_closed_and_opened_again(connect: str) -> None:
    async with session_of(connect, OURS) as session, session_of(connect, []) as stranger:
        own = await own_identities(session)
        before = await plan(session, own, close=True)
        assert await migrate(session, own, close=True) == len(before.changes) > 10
        after = await plan(session, own, close=True)

        assert own == {OURS_IN_ACLS}
        assert (after.changes, after.unchanged) == ((), len(before.changes) + before.unchanged)
        assert before.sensitive == 4
        closed, read = (31, *OURS_IN_ACLS), (1, "world", "anyone")
        for path in ("/", "/brokers/topics/t1/partitions/0/state", "/config", "/ottla/config/topics"):
            assert await acl_of(session, path) == {closed, read}
        for path in ("/config/users", "/config/users/u", "/delegation_token/tokens/k"):
            assert await acl_of(session, path) == {closed}
        for path in ("/consumers", "/consumers/g/ids", "/other"):
            assert await acl_of(session, path) == set(OPEN_ACL)
        for refused in (
            stranger.set("/brokers/topics/t0/partitions/0/state", b""),
            stranger.create("/brokers/ids/1"),
            stranger.create("/new-root"),
            stranger.get("/config/users/u"),
        ):
            with pytest.raises(NoAuth):
                await refused

        assert await migrate(session, own, close=False) == len(before.changes)
        await stranger.set("/config/users/u", b"open")
        assert (await plan(session, own, close=True)).changes[0].path == before.changes[0].path


@pytest.mark.java
async def test_a_live_broker_without_the_credentials_is_not_locked_out(connect: str) -> None:
    async with session_of(connect, OURS) as session, session_of(connect, []) as stranger:
        own = await own_identities(session)
        await stranger.create("/brokers/ids/2", b"{}", ephemeral=True)
        with pytest.raises(
            LockedOut, match=r"^broker 2 runs without the credentials of digest:broker:"
        ) as refused:
            await migrate(session, own, close=True)
        assert "\n" not in str(refused.value)
        assert len((await plan(session, own, close=True)).changes) > 10
        await check_lock_out(session, own, but=2)

        await session.create("/ottla/credentials", make_parents=True)
        async with session_of(connect, [("digest", "broker:other")]) as other:
            proof = Create("/ottla/credentials/2", ephemeral=True, acl=paths.CREATOR_ALL_WORLD_READ)
            await other.multi([proof])
            with pytest.raises(LockedOut):
                await check_lock_out(session, own)
        await session.multi([proof])
        assert await identities_of_brokers(session) == {2: own}
        assert await migrate(session, own, close=True) > 10


@pytest.mark.java
async def test_znodes_that_come_and_go_meanwhile_are_closed_or_left(connect: str) -> None:
    async with session_of(connect, OURS) as session, session_of(connect, OURS) as broker:
        own = await own_identities(session)

        async def churn() -> None:
            for number in range(150):
                await broker.create(f"/brokers/topics/n{number}/partitions", make_parents=True)
                await broker.create(f"/admin/delete_topics/n{number}", make_parents=True)
                await broker.delete(f"/admin/delete_topics/n{number}")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(churn())
            await migrate(session, own, close=True)
        await migrate(session, own, close=True)

        assert (await plan(session, own, close=True)).changes == ()


@pytest.mark.java
async def test_znodes_of_others_are_named(connect: str) -> None:
    async with session_of(connect, OURS) as session, session_of(connect, [("digest", "other:one")]) as other:
        await migrate(other, await own_identities(other), close=True)
        with pytest.raises(NoAuth):
            await own_identities(session)
        with pytest.raises(NoAuth, match="closed to all but digest:other:") as refused:
            await check_may_write(session)
        assert "zookeeper.sasl.jaas.file" in str(refused.value)
        with pytest.raises(NoAuth, match="it belongs to others"):
            await migrate(session, frozenset(), close=False)
        await check_may_write(other)


@pytest.mark.java
async def test_the_command_shows_first_and_changes_when_it_is_told(connect: str, tmp_path: Path) -> None:
    digest, settings = tmp_path / "digest", tmp_path / "server.properties"
    digest.write_text("broker:secret\n")
    digest.chmod(0o600)
    settings.write_text(f"# ours\nzookeeper.connect=x\nzookeeper.digest.file={digest}\n")

    def ran(*arguments: str) -> Result:
        return CliRunner().invoke(zookeeper, list(arguments))

    async with session_of(connect, []) as stranger:
        without = await asyncio.to_thread(ran, "secure", connect, "--apply")
        shown = await asyncio.to_thread(ran, "secure", connect, "--command-config", str(settings), "--list")
        assert await acl_of(stranger, "/brokers") == set(OPEN_ACL)
        await stranger.create("/brokers/ids/7", b"{}", ephemeral=True)
        refused = await asyncio.to_thread(
            ran, "secure", connect, "--command-config", str(settings), "--apply"
        )
        assert await acl_of(stranger, "/brokers") == set(OPEN_ACL)
        await stranger.delete("/brokers/ids/7")
        applied = await asyncio.to_thread(
            ran, "secure", connect, "--command-config", str(settings), "--apply"
        )
        assert await acl_of(stranger, "/brokers") != set(OPEN_ACL)
        opened = await asyncio.to_thread(ran, "open", connect, "--command-config", str(settings), "--apply")
        assert await acl_of(stranger, "/brokers") == set(OPEN_ACL)

    assert (without.exit_code, without.output.count("\n")) == (1, 1)
    assert "--command-config: ZooKeeper knows no identity" in without.output
    assert shown.exit_code == 0
    assert "/brokers/topics/t0/partitions/0/state\n" in shown.output
    assert "4 of them may hold secrets" in shown.output
    assert shown.output.endswith("Nothing was changed: --apply does it.\n")
    assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
    assert refused.output.startswith("Error: broker 7 runs without the credentials of digest:broker:")
    assert applied.output.splitlines()[-1].startswith("Changed the ACLs of ")
    assert opened.output.splitlines()[0].startswith(applied.output.split()[0])


async def test_the_tree_of_an_embedded_coordinator_is_closed_by_its_directory(tmp_path: Path) -> None:
    secret = read_or_make_secret(tmp_path)
    async with EmbeddedCoordinator(tmp_path, secret=secret) as coordinator:
        write_address(tmp_path, coordinator.connect_string)
        async with session_of(coordinator.connect_string, [("digest", f"ottla:{secret}")]) as session:
            await fill(session)
            await session.create("/brokers/ids/1", ephemeral=True)
            for expected in (r"Changed the ACLs of 2\d znodes", r"Changed the ACLs of 0 znodes"):
                done = await asyncio.to_thread(
                    CliRunner().invoke, zookeeper, ["secure", str(tmp_path), "--apply"]
                )
                assert done.exit_code == 0, done.output
                assert re.search(expected, done.output)
            assert ("digest", paths.digest_identity(f"ottla:{secret}".encode())) in {
                entry[1:] for entry in await acl_of(session, "/config/users")
            }


async def test_damaged_names_of_brokers_stop_nothing() -> None:
    async with MemoryEnsemble().session() as session:
        await session.create("/brokers/ids/not-a-number", make_parents=True)
        await session.create("/brokers/ids/-1")
        assert await identities_of_brokers(session) == {}
        await check_lock_out(session, frozenset())
        await check_may_write(session)
