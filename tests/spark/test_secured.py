"""Spark's driver and workers log in at a secured broker, and no plan, log or checkpoint has a secret."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.admin import Acl, Admin, Operation, PatternType, PermissionType, ResourceType
from ottla.broker.testing import SecureBroker
from ottla.client.config import ClientConfig
from ottla.client.security import SecurityConfig
from ottla.producer import SyncProducer
from peers.spark import small_driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TESTS = Path(__file__).parents[1]
SECRET = "hush-hush-hush"


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


PROGRAM = """
import json, os, sys

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession

sys.path.insert(0, {tests!r})
from peers.spark import with_patience

checkpoints, options = sys.argv[1], json.loads(sys.argv[2])
spark = SparkSession.builder.master("local[2]").getOrCreate()
for name, login in options.items():
    rows = spark.read.format("ottla").options(**login, subscribe="orders").load()
    rows.explain(True)
    assert rows.count() == 3
    exact = dict(login, topic="copies-" + name, delivery="exactly-once")
    with_patience(lambda: rows.select("value").write.format("ottla").mode("append").options(**exact).save())
    stream = spark.readStream.format("ottla").options(**login, subscribe="orders", startingOffsets="earliest")

    def copy():
        writer = stream.load().select("value").writeStream.format("ottla").trigger(availableNow=True)
        writer = writer.options(**login, topic="streamed-" + name)
        query = writer.option("checkpointLocation", checkpoints + "/" + name).start()
        query.awaitTermination()
        query.explain(True)
        print(query.lastProgress)

    with_patience(copy)
    both = "copies-" + name + ",streamed-" + name
    assert spark.read.format("ottla").options(**login, subscribe=both).load().count() == 6
spark.stop()
print("done")
"""

MIRROR = """
kind = "mirror"
name = "backup"
engine = "spark"
checkpoint = "state/backup"
rename = "copy.{{topic}}"

[source]
profile = "app"
topics = ["orders"]

[target]
bootstrap_servers = "{servers}"
options.kafka.security.protocol = "SASL_SSL"
options.kafka.ssl.ca.location = "{cafile}"
options.kafka.sasl.mechanism = "SCRAM-SHA-512"
options.kafka.sasl.username = "app"
options.kafka.sasl.password = "{secret}"
"""


def with_event_log(folder: Path) -> dict[str, str]:
    """Return variables of a process whose Spark is small and logs its events, uncompressed."""
    (folder / "events").mkdir()
    (folder / "driver").mkdir()
    environment = small_driver(folder / "driver")
    with (Path(environment["SPARK_CONF_DIR"]) / "spark-defaults.conf").open("a") as settings:
        settings.write(f"spark.eventLog.enabled true\nspark.eventLog.dir {folder / 'events'}\n")
        settings.write("spark.eventLog.compress false\n")
    return os.environ | environment | {"OTTLA_PROFILES": str(folder / "profiles.toml"), "APP_SECRET": SECRET}


def files_with(secret: bytes, *folders: Path) -> list[str]:
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert files
    return [str(file) for file in files if secret in file.read_bytes()]


def recipe_of_sinks() -> list[Acl]:
    """Return the rules of the page's recipe for exactly-once sinks, and those of their topics."""
    kinds = {
        ResourceType.TOPIC: (
            ("orders", PatternType.LITERAL, ("READ", "DESCRIBE_CONFIGS")),
            ("cop", PatternType.PREFIXED, ("WRITE", "CREATE", "READ", "DESCRIBE_CONFIGS")),
            ("streamed-", PatternType.PREFIXED, ("WRITE", "CREATE", "READ")),
            ("ottla-spark-batches", PatternType.LITERAL, ("WRITE", "CREATE", "READ")),
            ("ottla-mirror", PatternType.PREFIXED, ("WRITE", "CREATE", "READ", "DESCRIBE_CONFIGS")),
        ),
        ResourceType.TRANSACTIONAL_ID: (
            ("ottla-spark", PatternType.PREFIXED, ("WRITE", "DESCRIBE")),
            ("ottla-mirror-backup", PatternType.PREFIXED, ("WRITE", "DESCRIBE")),
        ),
    }  # fmt: skip
    return [
        Acl(kind, name, pattern, "User:app", "*", Operation[operation], PermissionType.ALLOW)
        for kind, rows in kinds.items()
        for name, pattern, operations in rows
        for operation in operations
    ]


@pytest.mark.timeout(900)  # two programs start Spark, one after the other
@pytest.mark.ottla_secure_broker(users={"app": SECRET})
async def test_no_plan_event_log_or_checkpoint_has_a_secret(
    ottla_secure_broker: SecureBroker, tmp_path: Path
) -> None:
    admin = ottla_secure_broker.client_settings()
    servers = admin.pop("bootstrap_servers")
    async with Admin(servers, ClientConfig(security=SecurityConfig(**admin))) as client:
        await client.acls.create(recipe_of_sinks())
        await client.topics.create("orders")
    with SyncProducer(bootstrap_servers=servers, **admin) as producer:
        for value in (b"one", b"two", b"three"):
            producer.send("orders", value).result(60)
    cafile = ottla_secure_broker.cafile
    (tmp_path / "profiles.toml").write_text(
        f'[app]\nbootstrap_servers = "{servers}"\nsecurity_protocol = "SASL_SSL"\nssl_cafile = "{cafile}"\n'
        'sasl_mechanism = "SCRAM-SHA-512"\nsasl_username = "app"\nsasl_password = { env = "APP_SECRET" }\n'
    )
    given = {f"kafka.{name}": value for name, value in ottla_secure_broker.librdkafka_settings("app").items()}
    options = json.dumps({"profile": {"profile": "app"}, "options": given})
    (tmp_path / "mirror.toml").write_text(MIRROR.format(servers=servers, cafile=cafile, secret=SECRET))
    environment = with_event_log(tmp_path)

    said = [
        await asyncio.to_thread(
            subprocess.run,
            [sys.executable, *command], capture_output=True, text=True, timeout=400, cwd=tmp_path,
            env=environment, check=False,
        )
        for command in (
            ["-c", PROGRAM.format(tests=str(TESTS)), str(tmp_path / "state"), options],
            ["-c", "from ottla.client.cli import main; main()", "pipeline", "run", "mirror.toml", "--once"],
        )
    ]  # fmt: skip

    for done in said:
        assert done.returncode == 0, done.stdout + done.stderr
        assert SECRET not in done.stdout + done.stderr
    assert "Parsed Logical Plan" in said[0].stdout
    assert files_with(SECRET.encode(), tmp_path / "events", tmp_path / "state", tmp_path / "driver") == []
    assert files_with(b"ottla-mirror-copies", tmp_path / "events"), "the event log has the plans"
