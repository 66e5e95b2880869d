"""`ottla config` and the resources that exist by their configuration: groups and subscriptions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ottla.admin import CLIENT_METRICS, GROUP, Admin
from ottla.admin.commands.config import config
from ottla.broker.testing import BrokerThread

LATENCIES = ("--client-metrics", "latencies")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path / "data") as running:
        yield running


@pytest.fixture
def ottla_config(broker: BrokerThread) -> Callable[..., Result]:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(config, [*arguments, "-b", broker.bootstrap_servers])

    return run


def test_a_subscription_to_client_metrics_is_set_shown_and_deleted(
    ottla_config: Callable[..., Result],
) -> None:
    values = ("--set", "metrics=*", "--set", "interval.ms=30000", "--set", "match=client_id=orders-.*")
    assert ottla_config("alter", *LATENCIES, *values).output == "Changed metrics, interval.ms, match.\n"

    shown = json.loads(ottla_config("describe", *LATENCIES, "--json").output)
    assert {row["key"]: (row["value"], row["source"], row["default"]) for row in shown} == {
        "interval.ms": ("30000", "client metrics", "300000"),
        "match": ("client_id=orders-.*", "client metrics", ""),
        "metrics": ("*", "client metrics", ""),
    }
    assert ottla_config("list").output.splitlines()[1] == (
        "client metrics  latencies  interval.ms=30000 match=client_id=orders-.* metrics=*"
    )
    assert ottla_config("delete", *LATENCIES).output == "Deleted subscription latencies.\n"
    assert json.loads(ottla_config("list", "--json").output) == []


async def _create(broker: BrokerThread, *topics: str) -> None:
    async with Admin(broker.bootstrap_servers) as admin:
        for topic in topics:
            await admin.topics.create(topic)


def test_a_topic_that_takes_no_dead_letters_is_accepted_with_a_warning(
    broker: BrokerThread, ottla_config: Callable[..., Result]
) -> None:
    asyncio.run(_create(broker, "deadjobs", "dlq.jobs"))
    enabled = "errors.deadletterqueue.group.enable=true"

    def named(topic: str) -> list[str]:
        setting = f"errors.deadletterqueue.topic.name={topic}"
        return ottla_config("alter", "--group", "workers", "--set", setting).output.splitlines()

    shown = [named(topic) for topic in ("deadjobs", "dlq.missing", "dlq.jobs")]
    ottla_config("alter", "--topic", "dlq.jobs", "--set", enabled)

    changed = "Changed errors.deadletterqueue.topic.name."
    warning = "Warning: no dead letters are written yet:"
    prefix = "errors.deadletterqueue.topic.name.prefix of the brokers"
    assert shown == [
        [changed, f"{warning} the name must begin with dlq. ({prefix})."],
        [changed, f"{warning} there is no topic 'dlq.missing'."],
        [changed, f"{warning} `ottla config alter --topic dlq.jobs --set {enabled}` is missing."],
    ]
    assert named("dlq.jobs") == [changed]


def test_the_settings_of_a_group_are_listed_and_deleted(ottla_config: Callable[..., Result]) -> None:
    ottla_config("alter", "--group", "workers", "--set", "share.auto.offset.reset=earliest")

    assert json.loads(ottla_config("list", "--json").output) == [
        {"kind": "group", "name": "workers", "settings": {"share.auto.offset.reset": "earliest"}}
    ]
    assert ottla_config("delete", "--group", "workers").output == "Deleted the settings of group workers.\n"
    again = ottla_config("delete", "--group", "workers")
    assert again.output == "Error: group 'workers' has no settings of its own.\n"


@pytest.mark.parametrize("command", ["describe", "delete"])
def test_a_subscription_that_is_not_there_is_refused_with_the_nearest(
    command: str, ottla_config: Callable[..., Result]
) -> None:
    ottla_config("alter", *LATENCIES, "--set", "metrics=*")

    refused = ottla_config(command, "--client-metrics", "latency")

    assert refused.output == (
        "Error: there is no subscription 'latency' to client metrics: did you mean 'latencies'?\n"
    )


async def test_names_are_those_of_one_kind_of_resource(broker: BrokerThread) -> None:
    async with Admin(broker.bootstrap_servers) as admin:
        await admin.configs.alter(GROUP, "workers", {"share.auto.offset.reset": "earliest"})
        await admin.configs.alter(CLIENT_METRICS, "latencies", {"metrics": "*"})

        assert await admin.configs.names(GROUP) == ["workers"]
        assert await admin.configs.names(CLIENT_METRICS) == ["latencies"]
