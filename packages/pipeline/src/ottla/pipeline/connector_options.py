"""The options of Spark's own Kafka connector, by name, and its settings in Spark's configuration.

The names are those of the classes in its jar and of the clients that it uses. A test reads them there again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CONNECTOR: Final = "4.2.0"
"""The version of `spark-sql-kafka-0-10` with these options."""
CLIENTS: Final = "3.9.1"
"""The version of Kafka's clients with these settings; options pass them with the prefix `kafka.`."""

OPTIONS: Final = (
    "assign", "subscribe", "subscribePattern", "startingOffsets", "startingOffsetsByTimestamp",
    "startingTimestamp", "startingOffsetsByTimestampStrategy", "endingOffsets", "endingOffsetsByTimestamp",
    "endingTimestamp", "failOnDataLoss", "minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs", "groupIdPrefix", "includeHeaders", "topic",
)  # fmt: skip
"""Options of reads and writes: one set of options often serves both."""

_BOTH: Final = frozenset(
    """
    auto.include.jmx.reporter bootstrap.servers client.dns.lookup client.id connections.max.idle.ms
    enable.metrics.push interceptor.classes metadata.max.age.ms metadata.recovery.strategy
    metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
    receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms
    retry.backoff.max.ms retry.backoff.ms sasl.client.callback.handler.class sasl.jaas.config
    sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
    sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
    sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms
    sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
    sasl.login.refresh.window.factor sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms
    sasl.login.retry.backoff.ms sasl.mechanism sasl.oauthbearer.clock.skew.seconds
    sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
    sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
    sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
    sasl.oauthbearer.token.endpoint.url security.protocol security.providers send.buffer.bytes
    socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.cipher.suites
    ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class
    ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key
    ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
    ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates
    ssl.truststore.location ssl.truststore.password ssl.truststore.type
    """.split()  # noqa: SIM905 - a list would take a line for each
)
CONSUMER: Final = _BOTH | frozenset(
    """
    allow.auto.create.topics auto.commit.interval.ms auto.offset.reset check.crcs client.rack
    default.api.timeout.ms enable.auto.commit exclude.internal.topics fetch.max.bytes fetch.max.wait.ms
    fetch.min.bytes group.id group.instance.id group.protocol group.remote.assignor
    heartbeat.interval.ms isolation.level key.deserializer max.partition.fetch.bytes
    max.poll.interval.ms max.poll.records partition.assignment.strategy session.timeout.ms
    value.deserializer
    """.split()  # noqa: SIM905 - a list would take a line for each
)
"""Settings of Kafka's consumer."""
PRODUCER: Final = _BOTH | frozenset(
    """
    acks batch.size buffer.memory compression.gzip.level compression.lz4.level compression.type
    compression.zstd.level delivery.timeout.ms enable.idempotence key.serializer linger.ms max.block.ms
    max.in.flight.requests.per.connection max.request.size metadata.max.idle.ms
    partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
    partitioner.ignore.keys retries transaction.timeout.ms transactional.id value.serializer
    """.split()  # noqa: SIM905 - a list would take a line for each
)
"""Settings of Kafka's producer."""

_POOL: Final = "each Python worker keeps one consumer and producer per set of options, and ends with them"
_LOGIN: Final = (
    "tasks log in with the options `kafka.*`, or the profile; a token is one of `kafka.sasl.jaas.config`"
)

CONFIGURATION: Final[Mapping[str, str]] = {
    "spark.kafka.producer.cache.timeout": _POOL,
    "spark.kafka.producer.cache.evictorThreadRunInterval": _POOL,
    "spark.kafka.consumer.cache.capacity": _POOL,
    "spark.kafka.consumer.cache.timeout": _POOL,
    "spark.kafka.consumer.cache.evictorThreadRunInterval": _POOL,
    "spark.kafka.consumer.cache.jmx.enable": "there is no JMX in Python",
    "spark.kafka.consumer.fetchedData.cache.timeout": "fetched data of a task is read by no other task",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": (
        "fetched data of a task is read by no other task"
    ),
    "spark.kafka.clusters.": _LOGIN,
}
"""Settings of Spark that only its own connector reads, and why they have no effect here."""
