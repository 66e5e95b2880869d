"""The metrics of a running broker: all that are promised, each with its meaning."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from ottla.admin import Admin
from ottla.admin.configs import CLIENT_ID
from ottla.broker.metrics import MetricName
from ottla.broker.metrics.catalogue import Described, catalogue, kind_of, meaning_of
from ottla.broker.metrics.prometheus import prometheus_name
from ottla.broker.testing import BrokerThread

TIMEOUT_S = 60.0

PROMISED = [
    'kafka_cluster_partition_atminisr{partition="0",topic="orders"}',
    'kafka_cluster_partition_insyncreplicascount{partition="0",topic="orders"}',
    'kafka_cluster_partition_laststableoffsetlag{partition="0",topic="orders"}',
    'kafka_cluster_partition_replicascount{partition="0",topic="orders"}',
    'kafka_cluster_partition_underminisr{partition="0",topic="orders"}',
    'kafka_cluster_partition_underreplicated{partition="0",topic="orders"}',
    'kafka_controller_controllerchannelmanager_queuesize{broker_id="1001"}',
    'kafka_consumergroup_current_offset{consumergroup="readers",partition="0",topic="orders"}',
    'kafka_consumergroup_lag{consumergroup="readers",partition="0",topic="orders"}',
    'kafka_consumergroup_members{consumergroup="readers"}',
    "kafka_controller_controllereventmanager_eventqueuesize",
    "kafka_controller_controllereventmanager_eventqueuetimems_count",
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    "kafka_controller_kafkacontroller_activecontrollercount",
    "kafka_controller_kafkacontroller_controllerstate",
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "kafka_controller_kafkacontroller_replicasineligibletodeletecount",
    "kafka_controller_kafkacontroller_replicastodeletecount",
    "kafka_controller_kafkacontroller_topicsineligibletodeletecount",
    'kafka_log_log_logendoffset{partition="0",topic="orders"}',
    'kafka_log_log_logstartoffset{partition="0",topic="orders"}',
    'kafka_log_log_numlogsegments{partition="0",topic="orders"}',
    'kafka_log_log_size{partition="0",topic="orders"}',
    "kafka_network_requestchannel_requestqueuesize",
    'kafka_network_requestmetrics_remotetimems_count{request="Produce"}',
    'kafka_network_requestmetrics_totaltimems_count{request="Fetch"}',
    "kafka_network_server_bytesin_total",
    "kafka_network_server_bytesout_total",
    'kafka_server_brokertopicmetrics_bytesin_total{topic="orders"}',
    'kafka_server_brokertopicmetrics_bytesout_total{topic="orders"}',
    "kafka_server_brokertopicmetrics_failedfetchrequests_total",
    "kafka_server_brokertopicmetrics_failedproducerequests_total",
    "kafka_server_brokertopicmetrics_messagesin_total",
    "kafka_server_brokertopicmetrics_reassignmentbytesin_total",
    "kafka_server_brokertopicmetrics_reassignmentbytesout_total",
    'kafka_server_replicafetchermanager_deadthreadcount{clientId="Replica"}',
    "kafka_server_replicamanager_failedisrupdates_total",
    "kafka_server_replicamanager_isrexpands_total",
    "kafka_server_replicamanager_isrshrinks_total",
    "kafka_server_replicamanager_leadercount",
    "kafka_server_replicamanager_partitioncount",
    "kafka_server_replicamanager_underminisrpartitioncount",
    "kafka_server_replicamanager_underreplicatedpartitions",
    'kafka_server_sessionexpirelistener_sessionstate{state="connected"}',
    "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms_count",
    'ottla_broker_backgroundtask_running{task="config-changes"}',
    'ottla_broker_backgroundtask_running{task="controller"}',
    'ottla_broker_backgroundtask_running{task="controller-to-broker-1001"}',
    'ottla_broker_backgroundtask_running{task="delete-logs"}',
    'ottla_broker_backgroundtask_running{task="event-loop-lag"}',
    'ottla_broker_backgroundtask_running{task="group-time"}',
    'ottla_broker_backgroundtask_running{task="idle-connections"}',
    'ottla_broker_backgroundtask_running{task="isr-proposals"}',
    'ottla_broker_backgroundtask_running{task="log-flusher"}',
    'ottla_broker_backgroundtask_running{task="log-retention"}',
    'ottla_broker_backgroundtask_running{task="log-start-offset-checkpoint"}',
    'ottla_broker_backgroundtask_running{task="producer-expiration"}',
    'ottla_broker_backgroundtask_running{task="recovery-point-checkpoint"}',
    'ottla_broker_backgroundtask_sincelastrunms{task="delete-expired-group-metadata"}',
    'ottla_broker_backgroundtask_sincelastrunms{task="delete-logs"}',
    'ottla_broker_backgroundtask_sincelastrunms{task="highwatermark-checkpoint"}',
    'ottla_broker_backgroundtask_sincelastrunms{task="isr-expiration"}',
    'ottla_broker_backgroundtask_sincelastrunms{task="log-flusher"}',
    'ottla_broker_backgroundtask_sincelastrunms{task="log-retention"}',
    'ottla_broker_backgroundtask_sincelastrunms{task="log-start-offset-checkpoint"}',
    'ottla_broker_backgroundtask_sincelastrunms{task="metrics-tick"}',
    'ottla_broker_backgroundtask_sincelastrunms{task="producer-expiration"}',
    'ottla_broker_backgroundtask_sincelastrunms{task="recovery-point-checkpoint"}',
    "ottla_broker_consumergroups_partitionsnotshown",
    "ottla_broker_eventloop_lagms_count",
]


async def set_quotas(servers: str) -> None:
    """Set quotas that no client of the test exceeds."""
    quotas = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.quotas.alter({CLIENT_ID: None}, dict.fromkeys(quotas, 1_000_000_000))


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """A broker with a topic that was written, read and committed."""
    settings = {
        "metrics.port": "0",
        "offsets.topic.num.partitions": "2",
        "group.initial.rebalance.delay.ms": "0",
        "telemetry.otlp.endpoint": "http://127.0.0.1:9/v1/metrics",  # no client pushes
    }
    with BrokerThread(tmp_path_factory.mktemp("data"), settings) as broker:
        servers = {"bootstrap.servers": broker.bootstrap_servers}
        asyncio.run(set_quotas(broker.bootstrap_servers))
        producer = Producer(servers)
        producer.produce("orders", b"value")
        assert producer.flush(TIMEOUT_S) == 0
        consumer = Consumer({**servers, "group.id": "readers", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        assert consumer.poll(TIMEOUT_S) is not None
        consumer.commit(asynchronous=False)
        yield broker
        consumer.close()


@pytest.fixture(scope="module")
def page(used: BrokerThread) -> str:
    assert used.broker is not None
    url = f"http://127.0.0.1:{used.broker.metrics_port}/metrics"
    return str(urllib.request.urlopen(url, timeout=TIMEOUT_S).read().decode())


@pytest.mark.parametrize("sample", PROMISED)
def test_the_page_has_every_promised_sample(page: str, sample: str) -> None:
    assert any(line.startswith(f"{sample} ") for line in page.splitlines())


def test_a_healthy_broker_has_these_values(page: str) -> None:
    for sample, value in (
        ('kafka_cluster_partition_insyncreplicascount{partition="0",topic="orders"}', "1.0"),
        ('kafka_cluster_partition_replicascount{partition="0",topic="orders"}', "1.0"),
        ('kafka_cluster_partition_underreplicated{partition="0",topic="orders"}', "0.0"),
        ('kafka_cluster_partition_laststableoffsetlag{partition="0",topic="orders"}', "0.0"),
        ("kafka_controller_kafkacontroller_activecontrollercount", "1.0"),
        ("kafka_controller_kafkacontroller_offlinepartitionscount", "0.0"),
        ('kafka_log_log_logendoffset{partition="0",topic="orders"}', "1.0"),
        ('kafka_server_sessionexpirelistener_sessionstate{state="connected"}', "1.0"),
        ('kafka_server_sessionexpirelistener_sessionstate{state="lost"}', "0.0"),
        ('ottla_broker_backgroundtask_running{task="controller"}', "1.0"),
    ):
        assert f"{sample} {value}" in page.splitlines()


def test_every_metric_of_a_broker_is_in_the_catalogue(used: BrokerThread) -> None:
    assert used.broker is not None
    known = {described[:5] for described in catalogue()}

    found = {
        (name.group, name.type, name.name, tuple(tag for tag, _ in name.tags), kind_of(metric))
        for name, metric in used.broker.metrics
    }

    assert found - known == set()


OF_FOLLOWERS = ("FetcherLagMetrics", "FetcherStats")
"""Types of metrics that a broker without other brokers does not have."""
OF_SHARE_GROUPS = (
    "DelayedShareFetchMetrics",
    "ShareGroupMetrics",
    "SharePartitionMetrics",
    "ShareSessionCache",
    "share-coordinator-metrics",
)
"""Types of metrics that a broker has with the first member of a share group: see the tests of those."""
OF_LOGINS = ("authentication-", "reauthentication-", "expired-connections-")
"""Parts of the names of metrics that a broker has with the first listener with a login."""


def test_a_busy_broker_has_every_metric_of_the_catalogue(used: BrokerThread) -> None:
    assert used.broker is not None
    found = {
        (name.group, name.type, name.name, tuple(tag for tag, _ in name.tags))
        for name, _ in used.broker.metrics
    }

    others = OF_FOLLOWERS + OF_SHARE_GROUPS
    known = {described[:4] for described in catalogue() if described.type not in others}
    missing = {name for name in known - found if not any(part in name[2] for part in OF_LOGINS)}
    assert missing == set()


def test_the_page_says_what_each_metric_means(page: str) -> None:
    help_lines = {line for line in page.splitlines() if line.startswith("# HELP")}
    name = MetricName("kafka.server", "ReplicaManager", "LeaderCount")

    assert f"# HELP {prometheus_name(name)} {meaning_of(name)} ({name})" in help_lines


def test_a_meaning_is_one_sentence() -> None:
    def is_sentence(described: Described) -> bool:
        return (
            described.meaning.endswith(".") and ". " not in described.meaning and len(described.meaning) < 90
        )

    assert [one for one in catalogue() if not is_sentence(one)] == []
