"""Spark's driver and workers log in at a secured broker, and name the permission that they lack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.broker.testing import SecureBroker
from ottla.producer import SyncProducer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.ottla_secure_broker(
    users={"reader": "readers secret"}, acls=[("reader", "READ", "topic", "orders")]
)
def test_a_topic_is_read_and_written_with_a_login(
    spark: SparkSession, ottla_secure_broker: SecureBroker
) -> None:
    with SyncProducer(**ottla_secure_broker.client_settings()) as producer:
        producer.send("orders", b"hush").result(60)
    reader, admin = (
        {f"kafka.{name}": value for name, value in ottla_secure_broker.librdkafka_settings(user).items()}
        for user in ("reader", "admin")
    )

    rows = spark.read.format("ottla").options(**reader, subscribe="orders").load()
    found = [bytes(row.value) for row in rows.select("value").collect()]
    copy = rows.select("value").write.format("ottla").mode("append")

    assert found == [b"hush"]
    copy.options(**admin, topic="copies").save()
    with pytest.raises(Exception, match=r"not permitted to .*'copies'") as failure:
        copy.options(**reader, topic="copies").save()
    assert "readers secret" not in str(failure.value)
