"""Records that members of share groups hold, on the pages of groups, from the metrics pages of brokers."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from ottla.admin import GROUP, Admin
from ottla.admin.groups import GroupDescription, GroupProgress, PartitionProgress
from ottla.broker.testing import BrokerThread
from ottla.client.config import ClientConfig
from ottla.console.clusters.metrics_pages import Acquired, GroupAcquired, MetricsPages, group_acquired
from ottla.console.clusters.services import Service, ServiceLogin
from ottla.console.settings import ClusterSettings
from ottla.console.testing import serving
from ottla.consumer import ShareConsumer
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition
from peers.json_service import Answer, json_service

BOUND_S = 60.0
TOKEN = "t0ken-of-metrics"
METER = "ottla_broker_sharepartitionmetrics_acquiredmessagecount"


def sample(group: str, partition: int, count: int) -> str:
    return f'{METER}{{group="{group}",partition="{partition}",topic="jobs"}} {count}.0\n'


def page_of(text: str) -> Answer:
    head = f"HTTP/1.1 200 -\r\ncontent-length: {len(text)}\r\nconnection: close\r\n\r\n"
    return Answer(raw=(head + text).encode())


# --- from pages, pure and of a scripted server


def test_a_group_has_the_counts_of_the_partitions_that_are_seen() -> None:
    seen = [PartitionProgress(TopicPartition("jobs", index), 0, 9) for index in (0, 1)]
    progress = GroupProgress(GroupDescription("workers", "Stable", "share", "", 1), tuple(seen))
    zero, one, hidden = (TopicPartition("jobs", 0), TopicPartition("jobs", 1), TopicPartition("pay", 0))

    found = group_acquired(progress, Acquired({"workers": {zero: 2, hidden: 7}, "others": {one: 5}}))

    assert found == GroupAcquired({zero: 2}, is_whole=False)
    assert found.total == 2
    assert group_acquired(progress, Acquired({"workers": {zero: 2, one: 0}})).is_whole
    assert group_acquired(progress, None).total is None


async def test_pages_of_several_brokers_count_together_and_one_that_fails_is_named() -> None:
    async with (
        json_service(lambda _: page_of(sample("workers", 0, 2) + sample("others", 0, 1))) as one,
        json_service(lambda _: page_of(sample("workers", 1, 3))) as two,
        json_service(lambda _: Answer(status=401)) as locked,
        json_service(lambda _: page_of(f'{METER}{{group="workers"}} 1.0\n')) as odd,
    ):
        urls = (one.url, two.url, locked.url, odd.url)
        pages = MetricsPages(Service("metrics page", urls, lambda: ServiceLogin(token=TOKEN)))
        found = await pages.acquired()
        await pages.close()

    assert found.by_group["workers"] == {TopicPartition("jobs", 0): 2, TopicPartition("jobs", 1): 3}
    assert found.by_group["others"] == {TopicPartition("jobs", 0): 1}
    refused, unreadable = found.failures
    assert f"the metrics page at {locked.url} refuses (401)" in refused
    assert f"the metrics page at {odd.url} cannot be read" in unreadable
    assert [asked.path for asked in one.asked] == ["/metrics"]
    assert one.asked[0].headers["authorization"] == f"Bearer {TOKEN}"


# --- on the pages of the console, of a real broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    settings = {
        "metrics.port": "0", "metrics.token.file": str(token), "group.share.heartbeat.interval.ms": "100",
    }  # fmt: skip
    with BrokerThread(tmp_path / "data", settings) as running:
        yield running


@pytest.fixture
async def member(broker: BrokerThread) -> AsyncIterator[ShareConsumer]:
    """A member of `workers` that holds three records of partition 0 of `jobs`."""
    servers = broker.bootstrap_servers
    async with Admin(servers) as admin, Producer(servers) as producer:
        await admin.topics.create("jobs", partitions=1)
        await admin.configs.alter(GROUP, "workers", {"share.auto.offset.reset": "earliest"})
        await producer.send_many("jobs", [b"%d" % number for number in range(3)])
        await producer.flush()
    async with (
        asyncio.timeout(BOUND_S),
        ShareConsumer("jobs", bootstrap_servers=servers, group_id="workers") as consumer,
    ):
        await consumer.getone()  # a fetch acquires the batch that was sent
        yield consumer


@asynccontextmanager
async def console(broker: BrokerThread, *urls: str, token: str = TOKEN) -> AsyncIterator[httpx.AsyncClient]:
    pages = Service("metrics page", urls, lambda: ServiceLogin(token=token)) if urls else None
    settings = ClusterSettings("local", broker.bootstrap_servers, ClientConfig, metrics=pages)
    async with serving(settings) as client:
        yield client


async def shown(console: httpx.AsyncClient) -> tuple[str, str, str]:
    """Return the page of `workers`, and what it and the list of groups have as acquired."""
    page = (await console.get("/c/local/group?name=workers")).text
    listed = (await console.get("/c/local/groups")).text
    fact = re.search(r"<b>([^<]*)</b><span>records acquired</span>", page)
    row = re.search(r">workers</a></th>.*?</td><td class=\"number\">([^<]*)</td>", listed, re.DOTALL)
    assert fact is not None
    assert row is not None
    return page, fact[1], row[1]


async def test_records_in_hand_are_shown_until_they_are_accepted_and_the_token_is_not(
    broker: BrokerThread, member: ShareConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with console(broker, broker.metrics_url.removesuffix("/metrics")) as client:
        held, fact, listed = await shown(client)
    await member.getone()
    await member.getone()
    await member.commit()
    async with console(broker, broker.metrics_url.removesuffix("/metrics")) as client:
        done, *after = await shown(client)

    assert (fact, listed) == ("3", "3")
    assert "members have acknowledged nothing yet" in held
    assert '<td class="number">–</td><td class="number">–</td>' not in held
    assert after == ["0", "0"]
    assert "members have acknowledged nothing yet" not in done
    assert "metrics_urls" not in held
    assert TOKEN not in held + done + caplog.text


async def test_without_a_metrics_page_the_console_says_how_to_name_one(
    broker: BrokerThread, member: ShareConsumer
) -> None:
    async with console(broker) as client:
        page, fact, listed = await shown(client)

    assert (fact, listed) == ("–", "–")
    assert "<code>metrics_urls</code> in the profile" in page


async def test_a_metrics_page_that_refuses_is_named_without_its_token(
    broker: BrokerThread, member: ShareConsumer
) -> None:
    async with console(broker, broker.metrics_url.removesuffix("/metrics"), token="wr0ng-token") as client:
        page, fact, listed = await shown(client)

    assert (fact, listed) == ("–", "–")
    assert "refuses (401)" in page
    assert "wr0ng-token" not in page


async def test_pages_that_lack_the_partition_are_said_to_and_one_too_many_is_no_fault(
    broker: BrokerThread, member: ShareConsumer
) -> None:
    real = broker.metrics_url.removesuffix("/metrics")
    async with json_service(lambda _: page_of("up 1.0\n")) as bare, console(broker, bare.url) as client:
        lacking, *nothing = await shown(client)
    async with console(broker, real, "http://127.0.0.1:1") as client:
        whole, *counts = await shown(client)

    assert nothing == ["–", "–"]
    assert "another broker leads it" in lacking
    assert counts == ["3", "3"]
    assert "Acquired is not known" not in whole


async def test_a_metrics_page_that_hangs_does_not_hold_up_the_pages_of_groups(
    broker: BrokerThread, member: ShareConsumer
) -> None:
    async with json_service(lambda _: Answer(hangs=True)) as silent, console(broker, silent.url) as client:
        page, fact, listed = await shown(client)

    assert (fact, listed) == ("–", "–")
    assert "have not answered yet" in page or "gave no answer within" in page
