"""Alerts: rules of a file, raised and cleared over looks, sent to a webhook, checked by a command."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ottla.admin import Admin, Broker, ClusterState, LogDir, PartitionHealth
from ottla.admin.groups import GroupDescription, GroupProgress, MemberDescription, PartitionProgress
from ottla.broker.testing import BrokerProcess
from ottla.client.config import ClientConfig
from ottla.console.settings import ClusterSettings
from ottla.console.testing import serving
from ottla.console.watch.alerts import Alerts, Event
from ottla.console.watch.collecting import Look
from ottla.console.watch.rule_files import KINDS, Rule, RuleError, read_rules, read_webhook
from ottla.console.watch.rules import FINDERS, findings
from ottla.console.watch.sending import Webhook
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition

ORDERS = TopicPartition("orders", 0)
MEMBER = MemberDescription("m", None, "client", "host", (ORDERS,))


def look(
    lag: int = 0, *, members: Sequence[MemberDescription] = (MEMBER,), end: int = 100,
    isr: tuple[int, ...] = (1, 2), leader: int | None = 1, brokers: tuple[int, ...] = (1, 2), used: int = 10,
) -> Look:  # fmt: skip
    progress = GroupProgress(
        GroupDescription("billing", "Stable", "consumer", "range", 1, tuple(members)),
        (PartitionProgress(ORDERS, end - lag, end),),
    )
    state = ClusterState(
        "id", 1, tuple(Broker(number, "host", 9092, None, number == 1) for number in brokers),
        (PartitionHealth(ORDERS, leader, (1, 2), isr),),
        log_dirs=(LogDir(1, "/data", (), None, 100, 100 - used),),
    )  # fmt: skip
    return Look("local", state, {"billing": progress}, {ORDERS: end})


def test_a_group_whose_coordinator_is_silent_keeps_its_alerts() -> None:
    alerts = Alerts([Rule("behind", "lag")])
    assert [event.kind for event in alerts.step(look(7), 0)] == ["raised"]

    silent = replace(look(), progress={}, silent_groups=frozenset({"billing"}))
    assert alerts.step(silent, 60) == []
    assert [event.kind for event in alerts.step(replace(look(), progress={}), 120)] == ["cleared"]


async def test_a_webhook_that_does_not_speak_http_is_asked_again() -> None:
    requests, is_sent = 0, asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"what?\r\n\r\n" if requests == 1 else b"HTTP/1.1 204 Yes\r\n\r\n")
        await writer.drain()
        writer.close()
        if requests > 1:
            is_sent.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        webhook = Webhook(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", first_pause_s=0)
        running = tasks.create_task(webhook.run())
        webhook.put(Event(0, "raised", "behind", "local", "billing", "billing lags"))
        await is_sent.wait()
        running.cancel()


@pytest.mark.parametrize(
    ("kind", "well", "ill", "subject"),
    [
        ("lag", look(), look(7), "billing"),
        ("no_members", look(7), look(7, members=()), "billing"),
        ("under_replicated", look(), look(isr=(1,)), "orders"),
        ("no_leader", look(), look(leader=None), "orders"),
        ("broker_away", look(), look(brokers=(1,)), "2"),
        ("disk", look(used=0), look(used=96), "1:/data"),
        ("lag_growing", look(5), look(9), "billing"),
        ("silent_topic", look(end=101), look(), "orders"),
    ],
)
def test_each_kind_is_found_where_it_is_and_not_elsewhere(
    kind: str, well: Look, ill: Look, subject: str
) -> None:
    rule = Rule("r", kind)

    assert findings(rule, well, look(5)) == []
    assert [found.subject for found in findings(rule, ill, look(5))] == [subject]


def test_every_kind_is_found_by_one_look_or_by_two() -> None:
    assert {*FINDERS, "lag_growing", "silent_topic"} == set(KINDS)
    assert len(KINDS) == 8  # each has its line above


def test_a_rule_is_about_the_names_and_clusters_that_it_matches() -> None:
    assert findings(Rule("r", "lag", match="pay*"), look(7), None) == []
    assert findings(Rule("r", "lag", cluster="prod*"), look(7), None) == []
    assert findings(Rule("r", "lag", above=7), look(7), None) == []
    assert len(findings(Rule("r", "lag", match="bill*", above=6), look(7), None)) == 1


def states(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def test_an_alert_is_raised_after_its_time_and_cleared_once() -> None:
    alerts = Alerts([Rule("slow", "lag", for_minutes=2)])

    assert states(alerts.step(look(7), 0)) == []
    assert states(alerts.step(look(8), 119)) == []
    assert states(alerts.step(look(9), 120)) == ["raised"]
    assert states(alerts.step(look(9), 180)) == []
    assert [(alert.subject, alert.since_s) for alert in alerts.raised] == [("billing", 0)]
    assert states(alerts.step(look(0), 240)) == ["cleared"]
    assert states(alerts.step(look(0), 300)) == []
    assert states(alerts.events) == ["raised", "cleared"]


def test_what_holds_for_too_short_a_time_raises_nothing() -> None:
    alerts = Alerts([Rule("slow", "lag", for_minutes=2)])

    for second in range(0, 600, 60):
        assert alerts.step(look(7 if second % 120 == 0 else 0), second) == []


def test_another_cluster_clears_nothing() -> None:
    alerts = Alerts([Rule("slow", "lag")])
    alerts.step(look(7), 0)

    assert states(alerts.step(replace(look(0), cluster="other"), 60)) == []
    assert len(alerts.raised) == 1


# --- the file


def test_rules_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(
        'webhook = "https://example.com/hook"\n[[rule]]\nname = "a"\nkind = "lag"\nabove = 10\n'
        "for_minutes = 5\n"
        '[[rule]]\nname = "b"\nkind = "disk"\nabove = 90.5\nsilent = true\n'
    )

    assert read_rules(path) == (
        Rule("a", "lag", above=10, for_minutes=5),
        Rule("b", "disk", above=90.5, silent=True),
    )
    assert read_webhook(path) == "https://example.com/hook"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("rule = 1", "must consist of [[rule]] tables"),
        ("[[rule]]\nkind = 'lag'", "rule 1 has no name"),
        ("[[rule]]\nname = 'a'", "rule 1 has no kind"),
        ("[[rule]]\nname = 'a'\nkind = 'rain'", "'rain' is no kind: lag, lag_growing"),
        ("[[rule]]\nname = 'a'\nkind = 'lag'\nabov = 1", "has no key 'abov': it has name, kind"),
        ("[[rule]]\nname = 'a'\nkind = 'lag'\nabove = '1'", "above = '1' is of the wrong type"),
        ("[[rule]]\nname = 'a'\nkind = 'lag'\nabove = true", "above = True is of the wrong type"),
        ("[[rule]]\nname='a'\nkind='lag'\n[[rule]]\nname='a'\nkind='disk'", "two rules are named 'a'"),
        ("[[rule", "is not TOML"),
    ],
)
def test_a_file_that_is_wrong_says_what_to_change(tmp_path: Path, text: str, advice: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)

    with pytest.raises(RuleError) as raised:
        read_rules(path)
    assert advice in str(raised.value)
    assert "\n" not in str(raised.value)


# --- sending


class Receiver:
    """A webhook that refuses the first requests."""

    def __init__(self, refusals: int = 0) -> None:
        self.bodies: list[dict[str, object]] = []
        receiver, left = self, [refusals]

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                left[0] -= 1
                self.send_response(200 if left[0] < 0 else 503)
                self.end_headers()
                if left[0] < 0:
                    receiver.bodies.append(json.loads(body))

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/secret-path"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver(refusals=2)
    found.start()
    yield found
    found.stop()


async def test_an_alert_is_sent_again_until_the_webhook_takes_it(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    webhook = Webhook(receiver.url, first_pause_s=0.01)
    webhook.put(Event(1, "raised", "slow", "local", "billing", "group billing is 7 records behind"))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(webhook.run())
        for _ in range(600):
            if receiver.bodies:
                break
            await asyncio.sleep(0.05)
        running.cancel()

    assert receiver.bodies[0]["text"] == "raised: group billing is 7 records behind"
    assert "secret-path" not in caplog.text


async def test_alerts_are_raised_and_cleared_by_real_faults(tmp_path: Path, receiver: Receiver) -> None:
    with BrokerProcess(tmp_path) as broker:
        address = f"127.0.0.1:{broker.port}"
        async with Admin(address) as admin, Producer(bootstrap_servers=address) as producer:
            await admin.topics.create("orders")
            await producer.send_and_wait("orders", b"x")
            await admin.groups.commit("billing", {ORDERS: 0})
            rules = (Rule("slow", "lag"),)
            async with serving(
                ClusterSettings("local", address, ClientConfig), rules=rules, webhook=receiver.url
            ) as console:
                for _ in range(600):
                    page = (await console.get("/alerts")).text
                    if "group billing is 1 records behind" in page and receiver.bodies:
                        break
                    await asyncio.sleep(0.1)

    assert 'role="alert"' in page
    assert receiver.bodies[0]["status"] == "raised"


def test_the_command_checks_rules_now(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nname = "full"\nkind = "disk"\nabove = 101\n')
    always = tmp_path / "always.toml"
    always.write_text('[[rule]]\nname = "some"\nkind = "disk"\nabove = -1\n')
    with BrokerProcess(tmp_path / "data") as broker:
        done = [
            subprocess.run(
                [sys.executable, "-c", "from ottla.client.cli import main; main()", "alerts", "check",
                 str(file),
                 "--bootstrap-server", f"127.0.0.1:{broker.port}"],
                capture_output=True, text=True, timeout=60, check=False,
            )
            for file in (rules, always)
        ]  # fmt: skip

    assert (done[0].returncode, done[0].stdout) == (0, "No rule of 1 holds.\n")
    assert done[1].returncode == 1
    assert done[1].stdout.startswith("some: the volume of ")
