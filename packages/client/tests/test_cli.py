from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ottla.client.cli import main
from ottla.client.commands import show
from ottla.client.config import ClientConfig
from ottla.client.settings import from_properties
from ottla.client.testing import ScriptedBroker
from ottla.protocol.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.metadata import MetadataRequest


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """A scripted broker on a loop of its own: commands bring their own loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    scripted = ScriptedBroker()
    asyncio.run_coroutine_threadsafe(scripted.__aenter__(), loop).result(10)
    scripted.on(MetadataRequest, lambda _: scripted.metadata("orders", partitions=2))
    yield scripted
    asyncio.run_coroutine_threadsafe(scripted.__aexit__(None, None, None), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def ottla(*arguments: str, broker: ScriptedBroker | None = None) -> Result:
    where = ["--bootstrap-server", broker.bootstrap_servers] if broker else []
    return CliRunner().invoke(main, [*arguments, *where])


def test_help_lists_commands_without_importing_them() -> None:
    program = "import sys; from ottla.client.cli import main\n"
    program += "try: main(['--help'])\nexcept SystemExit: print(sorted(sys.modules), file=sys.stderr)"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert "Create, list, describe, change and delete topics" in done.stdout
    assert "'asyncio'" not in done.stderr
    assert "ottla.client.commands" not in done.stderr


def test_tables_are_for_people_and_json_for_programs(broker: ScriptedBroker) -> None:
    table = ottla("topic", "list", broker=broker)
    listed = ottla("topic", "list", "--json", broker=broker)

    assert table.output.splitlines()[1].split() == ["orders", "2", "1", "0"]
    assert json.loads(listed.output)[0] == {
        "topic": "orders",
        "partitions": 2,
        "replicas": 1,
        "under_replicated": 0,
    }


def test_an_error_of_a_broker_is_one_line_and_an_exit_status(broker: ScriptedBroker) -> None:
    refused = CreatableTopicResult(name="a b", error_code=17, error_message="'a b' has a space")
    broker.on(CreateTopicsRequest, lambda _: CreateTopicsResponse(topics=[refused]))

    done = ottla("topic", "create", "a b", broker=broker)

    assert (done.exit_code, done.output) == (1, "Error: 'a b' has a space\n")


def test_configs_of_a_created_topic_reach_the_broker(broker: ScriptedBroker) -> None:
    created = CreatableTopicResult(name="t", num_partitions=3, replication_factor=1)
    broker.on(CreateTopicsRequest, lambda _: CreateTopicsResponse(topics=[created]))

    done = ottla("topic", "create", "t", "-p", "3", "-c", "retention.ms=5", broker=broker)

    (request,) = broker.seen(CreateTopicsRequest)
    assert done.output == "Created topic t: 3 partitions, 1 replica each.\n"
    assert request.topics[0].num_partitions == 3
    assert [(each.name, each.value) for each in request.topics[0].configs] == [("retention.ms", "5")]


def test_groups_of_all_brokers_are_listed(broker: ScriptedBroker) -> None:
    group = ListedGroup(group_id="billing", protocol_type="consumer", group_state="Stable")
    broker.on(ListGroupsRequest, lambda _: ListGroupsResponse(groups=[group]))

    done = ottla("group", "list", broker=broker)

    assert done.output.splitlines()[1].split() == ["billing", "Stable", "consumer"]


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["topic", "alter", "t"], "--partitions, --config or --delete-config"),
        (["topic", "create", "t", "-c", "retention.ms"], "KEY=VALUE"),
        (["config", "describe"], "--topic NAME, --broker ID and --all-brokers"),
        (["group", "reset-offsets", "g"], "--to-earliest"),
        (["topic", "list", "-b", "nowhere:port"], "host:port"),
    ],
)
def test_a_usage_error_says_what_to_write(arguments: list[str], advice: str) -> None:
    done = ottla(*arguments)

    assert done.exit_code == 2
    assert advice in done.output


def test_an_unreachable_broker_fails_soon_and_with_advice(broker: ScriptedBroker) -> None:
    done = ottla("topic", "list", "-b", "127.0.0.1:1")

    assert done.exit_code == 1
    assert "cannot connect to 127.0.0.1:1: Connection refused. " in done.output
    assert "--bootstrap-server" in done.output


def test_columns_of_numbers_are_right_aligned_also_with_one_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(("topic", "offset", "read only"), [("t", 100, True), ("t", None, False)], as_json=False)

    assert capsys.readouterr().out.splitlines()[1:] == ["t         100  yes", "t           -  no"]


def test_properties_of_kafka_are_read(tmp_path: Path) -> None:
    config = from_properties(
        ClientConfig,
        {
            "client.id": "me",
            "request.timeout.ms": "5",
            "security.protocol": "SSL",
            "ssl.check.hostname": "false",
        },
    )

    assert (config.client_id, config.request_timeout_ms) == ("me", 5)
    assert config.security.uses_tls
    assert not config.security.ssl_check_hostname


@pytest.mark.parametrize(
    ("key", "value"),
    [("request.timeout.ms", "soon"), ("ssl.check.hostname", "maybe"), ("sasl.jaas.config", "x")],
)
def test_invalid_properties_are_named(key: str, value: str) -> None:
    with pytest.raises(ValueError, match=key):
        from_properties(ClientConfig, {key: value})
