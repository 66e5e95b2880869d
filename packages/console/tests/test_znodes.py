"""Znodes: read-only, without secrets, with groups of old consumers; and what is said where there are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ottla.console.clusters.znodes import ZooKeeperRefused, read_znode, without_secrets
from ottla.console.settings import ZooKeeperSettings, clusters_of_profiles
from ottla.zookeeper.session import Acl
from ottla.zookeeper.testing import MemoryEnsemble


@pytest.mark.parametrize(
    ("path", "data", "shown"),
    [
        ("/config/users/anna", {"config": {"SCRAM-SHA-256": "salt=a,key=b", "producer_byte_rate": "9"}},
         {"config": {"SCRAM-SHA-256": "hidden", "producer_byte_rate": "9"}}),
        ("/config/brokers/1", {"ssl.keystore.key": "x", "ssl.key.password": "1234", "log.retention.ms": "5"},
         {"ssl.keystore.key": "hidden", "ssl.key.password": "hidden", "log.retention.ms": "5"}),
        ("/config/topics/orders", {"config": {"cleanup.policy": "compact", "some.password": "x"}},
         {"config": {"cleanup.policy": "compact", "some.password": "hidden"}}),
        ("/delegation_token/tokens/a", {"owner": "User:anna", "hmac": "c2VjcmV0", "issueTimestamp": "7"},
         {"owner": "hidden", "hmac": "hidden", "issueTimestamp": "7"}),
        ("/brokers/ids/1", {"host": "a", "port": 9092, "endpoints": ["PLAINTEXT://a:9092"]},
         {"host": "a", "port": 9092, "endpoints": ["PLAINTEXT://a:9092"]}),
    ],
)  # fmt: skip
def test_secrets_in_znodes_are_hidden(path: str, data: object, shown: object) -> None:
    clean, hidden = without_secrets(path, json.dumps(data).encode())

    assert clean is not None
    assert json.loads(clean) == shown
    assert hidden == json.dumps(shown).count('"hidden"')


def test_data_that_is_no_json_is_hidden_whole_where_it_may_be_a_secret() -> None:
    assert without_secrets("/ottla/security/unknown_users", b"\x01\x02") == (None, 1)
    assert without_secrets("/config/users/anna", b"x" * 3) == (None, 1)
    assert without_secrets("/some", b"the password is x") == (None, 1)
    assert without_secrets("/config/users/anna", b"[" * 100_000) == (None, 1)
    assert without_secrets("/consumers/g/offsets/t/0", b"42") == (b"42", 0)
    assert without_secrets("/brokers", b"") == (b"", 0)


def test_a_profile_names_zookeeper_beside_the_settings_of_clients(tmp_path: Path) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text(
        '[old]\nbootstrap_servers = "a:9092"\nzookeeper = "zk:2181/kafka"\nzookeeper_properties = "zk.conf"\n'
        '[new]\nbootstrap_servers = "b:9092"\n'
    )

    old, new = clusters_of_profiles((), file)

    assert old.zookeeper == ZooKeeperSettings("zk:2181/kafka", tmp_path / "zk.conf")
    assert new.zookeeper is None
    assert old.config().request_timeout_ms == new.config().request_timeout_ms


async def test_a_znode_has_data_children_acl_without_hashes_and_state() -> None:
    ensemble = MemoryEnsemble(now_ms=lambda: 5_000)
    async with ensemble.session() as session:
        await session.create("/brokers", b"")
        await session.create("/brokers/seqid", b"7")

        class WithAcl:
            """The session, with an ACL that the tree in memory does not keep."""

            get, children = session.get, session.children

            async def get_acl(self, path: str) -> object:
                acl = (Acl(31, "digest", "anna:aGFzaA=="), Acl(1, "world", "anyone"))
                return acl, await session.exists(path)

        found = await read_znode(WithAcl(), "/brokers")  # type: ignore[arg-type]
        leaf = await read_znode(WithAcl(), "/brokers/seqid")  # type: ignore[arg-type]
        with pytest.raises(ZooKeeperRefused, match="there is no such znode"):
            await read_znode(WithAcl(), "/none")  # type: ignore[arg-type]
        with pytest.raises(ZooKeeperRefused, match="is no path of a znode"):
            await read_znode(WithAcl(), "/a/../b")  # type: ignore[arg-type]

    assert (found.children, leaf.data) == (("seqid",), b"7")
    assert leaf.stat is not None
    assert (leaf.stat.ctime_ms, leaf.stat.data_length) == (5_000, 1)
    assert found.acl == (
        ("digest", "anna:hidden", "create, delete, read, write, change ACL"), ("world", "anyone", "read"),
    )  # fmt: skip
