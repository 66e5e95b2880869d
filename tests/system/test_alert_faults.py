"""Rules of alerts over real faults of a cluster of three: each raises its alert once, and is cleared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.admin import TOPIC, Admin
from ottla.broker.testing import BrokerCluster
from ottla.client.config import ClientConfig
from ottla.console.settings import ClusterSettings
from ottla.console.testing import alert_watch
from ottla.console.watch.alerts import EVENT_S
from ottla.console.watch.rule_files import Rule
from ottla.producer import Producer

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

ORDERS = "orders"


@pytest.fixture
def three(tmp_path: Path) -> Iterator[BrokerCluster]:
    with BrokerCluster(tmp_path, {"replica.lag.time.max.ms": "3000"}) as running:
        yield running


async def test_brokers_that_die_one_after_the_other(three: BrokerCluster) -> None:
    kinds = ("broker_away", "under_replicated", "no_leader", "offline", "unclean_election")
    rules = [Rule(kind, kind) for kind in kinds]
    settings = ClusterSettings("local", three.bootstrap_servers, ClientConfig)
    async with Admin(three.bootstrap_servers) as admin, alert_watch(settings, *rules) as watch:
        controller = (await admin.cluster_state()).controller
        leader, follower = (node for node in three.brokers if node != controller)
        await admin.topics.create(ORDERS, assignments={0: [leader, follower]})
        async with Producer(bootstrap_servers=three.bootstrap_servers) as producer:
            await producer.send_and_wait(ORDERS, b"first")
        assert await watch.look() == []

        three.brokers[follower].kill()
        await watch.until(("raised", "broker_away"), ("raised", "under_replicated"))
        three.brokers[leader].kill()
        await watch.until(("raised", "broker_away"), ("raised", "no_leader"), ("raised", "offline"))

        await admin.configs.alter(TOPIC, ORDERS, {"unclean.leader.election.enable": "true"})
        three.brokers[follower].start()
        await watch.until(
            ("cleared", "broker_away"), ("cleared", "no_leader"), ("cleared", "offline"),
            ("raised", "unclean_election"),
        )  # fmt: skip
        three.brokers[leader].start()
        await watch.until(("cleared", "broker_away"), ("cleared", "under_replicated"))

        watch.at_s += EVENT_S
        assert await watch.look() == [("cleared", "unclean_election")]
        assert watch.alerts.raised == []
