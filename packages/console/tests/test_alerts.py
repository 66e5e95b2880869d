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
from ottla.console.logins.access import OWNER, Grant, Role, Viewer
from ottla.console.pages.alerts import _seen, may_silence
from ottla.console.settings import ClusterSettings
from ottla.console.testing import serving
from ottla.console.watch.alerts import EVENT_S, Alert, Alerts, Event, Silence, Step
from ottla.console.watch.looks import Look
from ottla.console.watch.rule_files import KINDS, Rule, RuleError, Targets, read_rules, read_targets
from ottla.console.watch.rules import FINDERS, findings, readings, remembered, unreached
from ottla.console.watch.sending import Outbox, Webhook
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition

ORDERS, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
MEMBER = MemberDescription("m", None, "client", "host", (ORDERS,))


def look(
    lag: int = 0, *, members: Sequence[MemberDescription] = (MEMBER,), end: int = 100,
    isr: tuple[int, ...] = (1, 2), leader: int | None = 1, brokers: tuple[int, ...] = (1, 2), used: int = 10,
    replicas: tuple[int, ...] = (1, 2), late_s: float = 0.0, days: float = 90.0,
) -> Look:  # fmt: skip
    progress = GroupProgress(
        GroupDescription("billing", "Stable", "consumer", "range", 1, tuple(members)),
        (PartitionProgress(ORDERS, end - lag, end),),
    )
    state = ClusterState(
        "id", 1, tuple(Broker(number, "host", 9092, None, number == 1) for number in brokers),
        (PartitionHealth(ORDERS, leader, replicas, isr),),
        log_dirs=(LogDir(1, "/data", (), None, 100, 100 - used),),
    )  # fmt: skip
    return Look(
        "local", state, {"billing": progress}, {ORDERS: end}, time_lags_s={"billing": late_s},
        certificate_days={"1:host:9092": days},
    )  # fmt: skip


class Watch:
    """Alerts that are given looks, each compared with those before it."""

    def __init__(self, *rules: Rule) -> None:
        self.alerts = Alerts(rules)
        self._earlier: Look | None = None

    def step(self, found: Look, at_s: int) -> list[str]:
        step = self.alerts.step(readings(found, self._earlier), at_s)
        self._earlier = remembered(found, self._earlier)
        return [event.kind for event in step.events]


SILENT = replace(look(), progress={}, silent_groups=frozenset({"billing"}))


def test_a_group_whose_coordinator_is_silent_keeps_its_alerts() -> None:
    watch = Watch(Rule("behind", "lag"))
    assert watch.step(look(7), 0) == ["raised"]

    assert watch.step(SILENT, 60) == []
    assert watch.step(replace(look(), progress={}), 120) == ["cleared"]


def test_a_lag_that_grows_on_while_the_coordinator_is_silent_stays_raised() -> None:
    watch = Watch(Rule("grows", "lag_growing"))
    assert [watch.step(look(5), 0), watch.step(look(7), 30)] == [[], ["raised"]]

    assert watch.step(SILENT, 60) == []
    assert watch.step(look(9), 90) == []
    assert watch.step(look(9), 120) == ["cleared"]


def test_a_topic_stays_silent_while_its_leader_is_away() -> None:
    watch = Watch(Rule("silent", "silent_topic"))
    assert [watch.step(look(), 0), watch.step(look(), 30)] == [[], ["raised"]]

    assert watch.step(replace(look(leader=None), ends={}), 60) == []
    assert watch.step(look(), 90) == []
    assert watch.step(look(end=101), 120) == ["cleared"]


def test_a_lag_of_which_a_part_is_hidden_clears_nothing() -> None:
    watch = Watch(Rule("behind", "lag", above=5))
    both = look(7)
    progress = both.progress["billing"]
    hidden = replace(
        progress,
        partitions=(replace(progress.partitions[0], end_offset=None), PartitionProgress(OTHER, 3, 4)),
    )
    assert watch.step(both, 0) == ["raised"]

    assert watch.step(replace(both, progress={"billing": hidden}), 30) == []


def test_a_disk_of_a_broker_that_does_not_answer_keeps_its_alert() -> None:
    watch = Watch(Rule("full", "disk", above=90))
    away = look(brokers=(2,))
    assert watch.step(look(used=96), 0) == ["raised"]

    assert watch.step(replace(away, state=replace(away.state, log_dirs=())), 30) == []
    assert watch.step(look(used=50), 60) == ["cleared"]


def test_a_group_that_no_broker_lists_while_its_offsets_have_no_leader_keeps_its_alert() -> None:
    watch = Watch(Rule("behind", "lag"))
    offsets = PartitionHealth(TopicPartition("__consumer_offsets", 0), None, (1,), (1,))
    lost = replace(look(), progress={})
    lost = replace(lost, state=replace(lost.state, partitions=(*lost.state.partitions, offsets)))
    assert watch.step(look(7), 0) == ["raised"]

    assert watch.step(lost, 30) == []
    assert watch.step(replace(look(), progress={}), 60) == ["cleared"]


def test_a_cluster_that_does_not_answer_raises_an_alert_and_clears_no_other() -> None:
    alerts = Alerts([Rule("away", "unreachable"), Rule("behind", "lag")])
    assert states(alerts.step(readings(look(7), None), 0)) == ["raised"]

    assert states(alerts.step(unreached("local", "no broker answers"), 30)) == ["raised"]
    assert [alert.text for alert in alerts.raised if alert.rule.name == "away"] == [
        "cluster local does not answer: no broker answers"
    ]
    assert states(alerts.step(readings(look(7), None), 60)) == ["cleared"]


def test_an_unclean_election_stands_for_an_hour() -> None:
    watch = Watch(Rule("unclean", "unclean_election", for_minutes=60))
    assert watch.step(look(isr=(1,), leader=None), 0) == []
    assert watch.step(look(isr=(2,), leader=2), 30) == ["raised"]

    assert watch.step(look(isr=(2,), leader=2), 60) == []
    assert watch.step(look(isr=(1, 2), leader=2), EVENT_S + 30) == ["cleared"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (look(isr=(1, 2), leader=1), look(isr=(2,), leader=2)),  # an election among those in sync
        (look(isr=(1,), leader=1), look(isr=(1, 2), leader=2)),  # a follower caught up, and leads
        (look(isr=(1,), leader=1), look(isr=(3,), leader=3, replicas=(3,))),  # a reassignment
        (look(isr=(1,), leader=1), look(isr=(1,), leader=None)),
    ],
)
def test_other_changes_of_a_leader_are_no_unclean_election(before: Look, after: Look) -> None:
    assert findings(Rule("r", "unclean_election"), after, before) == []


def silence(until_s: int, subject: str = "bill*") -> Silence:
    return Silence("*", "local", subject, 0, until_s, "planned work", "anna", id=1)


def test_what_a_silence_covers_is_sent_once_it_is_over() -> None:
    alerts = Alerts([Rule("behind", "lag")], silences=[silence(100)])

    first = alerts.step(readings(look(7), None), 0)
    assert (states(first), first.events[0].is_silent, first.notices) == (["raised"], True, ())
    assert alerts.step(readings(look(7), None), 60).notices == ()
    (notice,) = alerts.step(readings(look(7), None), 120).notices
    assert (notice.kind, notice.id) == ("raised", first.events[0].id)
    assert alerts.step(readings(look(7), None), 150).notices == ()
    assert [event.kind for event in alerts.step(readings(look(0), None), 180).notices] == ["cleared"]


def test_an_alert_that_a_silence_has_outlasted_is_never_sent() -> None:
    alerts = Alerts([Rule("behind", "lag")], silences=[silence(100)])
    alerts.step(readings(look(7), None), 0)

    assert alerts.step(readings(look(0), None), 60).notices == ()
    assert alerts.step(readings(look(7), None), 120).notices


def test_a_silence_covers_the_names_of_its_patterns() -> None:
    alerts = Alerts([Rule("behind", "lag")], silences=[silence(100, "pay*")])

    assert alerts.step(readings(look(7), None), 0).notices
    assert [found.id for found in alerts.forget_silences(100)] == [1]


@pytest.mark.parametrize(
    ("kind", "well", "ill", "subject"),
    [
        ("lag", look(), look(7), "billing"),
        ("no_members", look(7), look(7, members=()), "billing"),
        ("under_replicated", look(), look(isr=(1,)), "orders"),
        ("no_leader", look(), look(leader=None), "orders"),
        ("broker_away", look(), look(brokers=(1,)), "2"),
        ("disk", look(used=0), look(used=96), "1:/data"),
        ("time_lag", look(), look(late_s=90), "billing"),
        ("offline", look(leader=None), look(leader=None, brokers=(3,)), "orders"),
        ("unclean_election", look(), look(isr=(3,), leader=3, replicas=(1, 2, 3)), "orders"),
        ("certificate", look(), look(days=29), "1:host:9092"),
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


def test_every_kind_has_a_finder() -> None:
    assert set(FINDERS) == set(KINDS)
    assert len(KINDS) == 13  # each but `unreachable` has its line above


def test_a_rule_is_about_the_names_and_clusters_that_it_matches() -> None:
    assert findings(Rule("r", "lag", match="pay*"), look(7), None) == []
    assert findings(Rule("r", "lag", cluster="prod*"), look(7), None) == []
    assert findings(Rule("r", "lag", above=7), look(7), None) == []
    assert len(findings(Rule("r", "lag", match="bill*", above=6), look(7), None)) == 1


def states(step: Step) -> list[str]:
    return [event.kind for event in step.events]


def test_an_alert_is_raised_after_its_time_and_cleared_once() -> None:
    watch = Watch(Rule("slow", "lag", for_minutes=2))

    assert watch.step(look(7), 0) == []
    assert watch.step(look(8), 119) == []
    assert watch.step(look(9), 120) == ["raised"]
    assert watch.step(look(9), 180) == []
    assert [(alert.subject, alert.since_s) for alert in watch.alerts.raised] == [("billing", 0)]
    assert watch.step(look(0), 240) == ["cleared"]
    assert watch.step(look(0), 300) == []
    assert [event.kind for event in watch.alerts.events] == ["raised", "cleared"]


def test_what_holds_for_too_short_a_time_raises_nothing() -> None:
    watch = Watch(Rule("slow", "lag", for_minutes=2))

    for second in range(0, 600, 60):
        assert watch.step(look(7 if second % 120 == 0 else 0), second) == []


def test_another_cluster_clears_nothing() -> None:
    watch = Watch(Rule("slow", "lag"))
    watch.step(look(7), 0)

    assert watch.step(replace(look(0), cluster="other"), 60) == []
    assert len(watch.alerts.raised) == 1


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
    assert read_targets(path).webhook == "https://example.com/hook"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("rule = 1", "must consist of [[rule]] tables"),
        ("[[rule]]\nkind = 'lag'", "rule 1 has no name"),
        ("[[rule]]\nname = 'a'", "rule 1 has no kind"),
        ("[[rule]]\nname = 'a'\nkind = 'rain'", "'rain' is no kind: lag, time_lag"),
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
    webhook = Outbox(Webhook(receiver.url), first_pause_s=0.01)
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
                ClusterSettings("local", address, ClientConfig), rules=rules, targets=Targets(receiver.url)
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


def test_a_viewer_sees_the_alerts_of_their_groups_and_topics_only() -> None:
    viewer = Viewer("anna", (Grant(Role.VIEWER, ("local",), topics=("orders*",), groups=("bill*",)),))
    rules = {rule.name: rule for rule in (Rule("g", "lag"), Rule("t", "no_leader"), Rule("d", "disk"))}
    alerts = [
        Alert(rules[rule], cluster, subject, 0, "text")
        for rule, cluster, subject in (
            ("g", "local", "billing"), ("g", "local", "payroll"), ("g", "other", "billing"),
            ("t", "local", "orders"), ("t", "local", "salaries"), ("d", "local", "1:/data"),
        )
    ]  # fmt: skip
    kinds = {name: rule.kind for name, rule in rules.items()}
    gone = Event(0, "raised", "a rule of last week", "local", "billing", "text")

    assert [alert.subject for alert in _seen(viewer, kinds, alerts)] == ["billing", "orders"]
    assert _seen(viewer, kinds, [gone]) == []
    assert len(_seen(OWNER, kinds, alerts)) == 6


def test_a_silence_is_of_clusters_of_its_author_only() -> None:
    viewer = Viewer("otto", (Grant(Role.OPERATOR, ("prod-?",)),))
    known = ["prod-1", "prod-2", "prod-10", "test"]

    assert may_silence(viewer, "prod-1", known)
    assert may_silence(viewer, "prod-?", known)
    assert not may_silence(viewer, "prod-*", known)
    assert not may_silence(viewer, "*", known)
    assert not may_silence(viewer, "prod-[0-9]*", known)
    assert may_silence(OWNER, "*", known)
