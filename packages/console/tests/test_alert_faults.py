"""Rules of alerts over real faults of one broker: each raises its alert once, and its end clears it once.

Faults that need a cluster are in tests/system/test_alert_faults.py.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from ottla.admin import Admin
from ottla.broker.security.tls.testing import DAY, Authority
from ottla.broker.testing import BrokerProcess, free_port
from ottla.client.config import ClientConfig
from ottla.client.security import SecurityConfig
from ottla.console.settings import ClusterSettings
from ottla.console.testing import alert_watch
from ottla.console.watch.rule_files import Rule
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition
from peers.small_disk import small_disk


def local(address: str, config: ClientConfig | None = None) -> ClusterSettings:
    return ClusterSettings("local", address, lambda: config or ClientConfig())


async def test_a_group_that_falls_behind(admin: Admin, address: str) -> None:
    topic, group = "behind", "falls-behind"
    partition = TopicPartition(topic, 0)
    rules = [
        Rule(kind, kind, match=group, above=above)
        for kind, above in (("lag", 2), ("time_lag", 0.05), ("lag_growing", 0), ("no_members", 2))
    ]
    await admin.topics.create(topic)
    async with alert_watch(local(address), *rules) as watch, Producer(bootstrap_servers=address) as producer:
        await producer.send_and_wait(topic, b"1")
        await admin.groups.commit(group, {partition: 1})
        assert await watch.look() == []

        late, events = 0, set[tuple[str, str]]()
        async with asyncio.timeout(60):
            while len(events) < len(rules):  # the lag must grow until all rules hold
                for _ in range(3):
                    await producer.send_and_wait(topic, b"more")
                late += 3
                events.update(await watch.look())
        assert events == {("raised", rule.kind) for rule in rules}
        assert ("cleared", "lag_growing") in await watch.look()  # nothing more is written

        async with Consumer(topic, group_id=group, bootstrap_servers=address) as consumer:
            for _ in range(late):
                await consumer.getone()
            await consumer.commit()
            await watch.until(*(("cleared", kind) for kind in ("lag", "time_lag", "no_members")))


async def test_a_topic_that_falls_silent(admin: Admin, address: str) -> None:
    await admin.topics.create("beats")
    rule = Rule("silent_topic", "silent_topic", match="beats")
    async with alert_watch(local(address), rule) as watch, Producer(bootstrap_servers=address) as producer:
        for _ in range(3):
            await producer.send_and_wait("beats", b"beat")
            assert await watch.look() == []

        await watch.until(("raised", "silent_topic"))
        await producer.send_and_wait("beats", b"beat")
        await watch.until(("cleared", "silent_topic"))


async def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk, BrokerProcess(disk.folder / "data") as broker:
        rule = Rule("disk", "disk", above=90)
        async with alert_watch(local(broker.bootstrap_servers), rule) as watch:
            assert await watch.look() == []

            disk.fill(2 << 20)
            await watch.until(("raised", "disk"))
            disk.free()
            await watch.until(("cleared", "disk"))


async def test_a_cluster_that_does_not_answer(tmp_path: Path) -> None:
    rules = Rule("unreachable", "unreachable"), Rule("disk", "disk", above=-1)
    with BrokerProcess(tmp_path) as broker:
        async with alert_watch(local(broker.bootstrap_servers), *rules) as watch:
            assert await watch.look() == [("raised", "disk")]  # it holds always: nothing may clear it

            broker.kill()
            await watch.until(("raised", "unreachable"))
            broker.start()
            await watch.until(("cleared", "unreachable"))


async def test_a_certificate_near_its_end(tmp_path: Path) -> None:
    authority = Authority("authority")
    keystore, port = tmp_path / "broker.pem", free_port()
    authority.sign("broker", lasts=5 * DAY).write(keystore)
    settings = {
        "listeners": f"SSL://127.0.0.1:{port}", "security.inter.broker.protocol": "SSL",
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM", "ssl.truststore.location": authority.write(tmp_path / "authority.pem"),
    }  # fmt: skip
    security = SecurityConfig(security_protocol="SSL", ssl_cafile=str(tmp_path / "authority.pem"))
    address = f"127.0.0.1:{port}"
    config = ClientConfig(bootstrap_servers=address, security=security)
    rule = Rule("certificate", "certificate", days=10)
    with BrokerProcess(tmp_path / "data", settings) as broker:
        async with alert_watch(local(address, config), rule) as watch:
            await watch.until(("raised", "certificate"))
            (alert,) = watch.alerts.raised
            assert alert.subject.endswith(f":127.0.0.1:{port}")
            assert alert.text.endswith("ends in 5.0 days")

            authority.sign("broker", lasts=300 * DAY).write(keystore)
            broker.restart()
            await watch.until(("cleared", "certificate"))


async def test_a_rule_that_nothing_breaks_raises_nothing(admin: Admin, address: str) -> None:
    kinds = ("under_replicated", "offline", "no_leader", "unclean_election", "broker_away", "unreachable")
    async with alert_watch(local(address), *(Rule(kind, kind) for kind in kinds)) as watch:
        assert [await watch.look() for _ in range(3)] == [[], [], []]
