"""Targets of alerts: mail over TLS, topics, bounded retries; silences; alerts that survive a restart."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword, Session
from click.testing import CliRunner

from ottla.admin import Admin
from ottla.broker.testing import free_port
from ottla.client.config import Address, ClientConfig
from ottla.client.profiles import SecretSource
from ottla.console.cli import alerts as alerts_command
from ottla.console.records.reading import newest
from ottla.console.settings import ClusterSettings
from ottla.console.testing import serving
from ottla.console.watch.alert_store import StoredAlerts
from ottla.console.watch.alerts import Event, Silence
from ottla.console.watch.checking import NoHistory, events_of
from ottla.console.watch.history import History, Series
from ottla.console.watch.rule_files import AlertTopic, Mail, Rule, RuleError, read_targets
from ottla.console.watch.rules import Readings, finding
from ottla.console.watch.sending import ATTEMPTS, MailTarget, NotSent, Outbox, TopicTarget, mail_of, outboxes
from ottla.protocol.topics import TopicPartition
from peers.certificates import Authority

RAISED = Event(1_767_225_600, "raised", "slow", "local", "billing", "group billing is 7 records behind")
NOW_S = 1_767_225_600


class Mailbox:
    """Takes mail of one user, over STARTTLS."""

    def __init__(self) -> None:
        self.mails: list[tuple[list[str], bytes]] = []

    async def handle_DATA(  # noqa: N802 - aiosmtpd's name
        self, server: object, session: Session, envelope: Envelope
    ) -> str:
        assert session.ssl is not None
        assert isinstance(envelope.content, bytes)
        self.mails.append((envelope.rcpt_tos, envelope.content))
        return "250 taken"


def logged_in(_: object, __: object, ___: object, ____: object, data: Any) -> AuthResult:
    is_good = isinstance(data, LoginPassword) and (data.login, data.password) == (b"alerts", b"secret")
    return AuthResult(success=is_good, handled=False)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def mailbox(authority: Authority) -> Iterator[tuple[Mailbox, int]]:
    certificate, key = authority.sign("mail")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    box = Mailbox()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        controller = Controller(
            box, "127.0.0.1", free_port(), tls_context=context, require_starttls=True,
            authenticator=logged_in, auth_required=True,
        )  # fmt: skip
        controller.start()
        yield box, controller.port
        controller.stop()


def mail(port: int, authority: Authority, folder: Path, password: str = "secret") -> Mail:
    (folder / "password").write_text(f"{password}\n")
    return Mail(
        Address("127.0.0.1", port), "kafka@example.com", ("night@example.com", "day@example.com"),
        username="alerts", password=SecretSource("file", "password"), cafile=authority.cafile, folder=folder,
    )  # fmt: skip


async def test_an_alert_is_mailed_over_tls_with_a_login(
    tmp_path: Path, authority: Authority, mailbox: tuple[Mailbox, int]
) -> None:
    box, port = mailbox
    await MailTarget(mail(port, authority, tmp_path)).send(RAISED)

    ((recipients, content),) = box.mails
    assert recipients == ["night@example.com", "day@example.com"]
    assert b"Subject: [local] raised: slow: group billing is 7 records behind" in content
    assert f"<{RAISED.id}@ottla-console>".encode() in content


async def test_a_login_that_is_refused_and_a_server_that_nobody_vouches_for_send_nothing(
    tmp_path: Path, authority: Authority, mailbox: tuple[Mailbox, int]
) -> None:
    box, port = mailbox
    other = Authority(tmp_path / "other")

    with pytest.raises(NotSent, match="the server refused the login of alerts") as refused:
        await MailTarget(mail(port, authority, tmp_path, "wrong")).send(RAISED)
    with pytest.raises(NotSent, match="certificate"):
        await MailTarget(mail(port, other, tmp_path)).send(RAISED)
    assert "wrong" not in str(refused.value)
    assert box.mails == []


def test_names_of_groups_make_no_header_lines() -> None:
    event = Event(
        0, "raised", "slow", "local", "a\r\nBcc: x@example.com", "group a\r\nBcc: x@example.com is late"
    )
    text = mail_of(event, Mail(Address("h", 25), "a@example.com", ("b@example.com",))).as_string()

    assert not re.search("^Bcc", text, re.MULTILINE)
    assert "Subject: [local] raised: slow: group a  Bcc: x@example.com is late" in text


@pytest.mark.parametrize("form", ["json", "msgpack"])
async def test_an_alert_is_written_to_a_topic(form: Any, admin: Admin, address: str) -> None:
    topic = f"alerts-{form}"
    await admin.topics.create(topic)
    await TopicTarget(AlertTopic(topic, bootstrap_servers=address, format=form)).send(RAISED)

    (record,) = await newest(admin, topic, [0], 10)
    read = json.loads if form == "json" else msgpack.unpackb
    assert record.key == b"local/slow/billing"
    assert read(record.value or b"")["text"] == "raised: group billing is 7 records behind"


async def test_a_topic_that_does_not_exist_says_so(address: str) -> None:
    with pytest.raises(NotSent):
        await TopicTarget(AlertTopic("no topic", bootstrap_servers=address)).send(RAISED)


class Refusing:
    """A target that takes nothing."""

    name = "webhook"

    def __init__(self) -> None:
        self.asked = 0
        self.is_done = asyncio.Event()

    async def send(self, event: Event) -> None:
        self.asked += 1
        if event.subject == "last":
            self.is_done.set()
        raise NotSent("no, thank you")


async def test_an_alert_is_given_up_after_five_attempts_and_a_copy_is_dropped() -> None:
    target = Refusing()
    outbox = Outbox(target, first_pause_s=0)
    last = Event(2, "raised", "slow", "local", "last", "text")
    for event in (RAISED, RAISED, last):
        outbox.put(event)
    assert outbox.waiting == 2
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(outbox.run())
        await target.is_done.wait()
        running.cancel()

    assert (target.asked, outbox.given_up, outbox.failure) == (ATTEMPTS + 1, 1, "no, thank you")


def test_targets_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(
        'webhook = { env = "HOOK" }\n[mail]\nserver = "smtp.example.com:587"\nusername = "alerts"\n'
        'password = { file = "password" }\nsender = "k@example.com"\nrecipients = ["n@example.com"]\n'
        '[topic]\nname = "alerts"\nprofile = "production"\nformat = "msgpack"\n'
    )

    found = read_targets(path)
    assert found.webhook == SecretSource("env", "HOOK")
    assert found.mail is not None
    assert (found.mail.server, found.mail.security) == (Address("smtp.example.com", 587), "starttls")
    assert found.topic == AlertTopic("alerts", "production", format="msgpack")
    assert [box.target.name for box in outboxes(found)] == ["webhook", "mail", "topic"]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("webhook = 'ftp://x'", "webhook must be an address"),
        ("[mail]\nserver = 's:25'", "[mail] has no sender"),
        ("[mail]\nserver='s'\nsender='k@x.org'\nrecipients=['n']", "'n' is no address"),
        ("[mail]\nserver='s'\nsender='k@x.org'\nrecipients=['n@x.org']\nusername='a'\npassword='p'",
         "holds password in clear"),
        ("[mail]\nserver='s'\nsender='k@x.org'\nrecipients=['n@x.org']\nusername='a'",
         "username and password belong together"),
        ("[mail]\nserver='s'\nsender='k@x.org'\nrecipients=['n@x.org']\nusername='a'\n"
         "password={env='P'}\nsecurity='none'", "would send its password in clear"),
        ("[mail]\nserver='s'\nsender='k@x.org'\nrecipients=['n@x.org']\nsecurity='ssl'",
         "'ssl' must be starttls, tls, none"),
        ("[topic]\nname='alerts'", "needs profile or bootstrap_servers"),
        ("[topic]\nname='alerts'\nprofile='p'\nformat='xml'", "must be json, msgpack"),
        ("[webhooks]\n", "not 'webhooks'"),
    ],
)  # fmt: skip
def test_a_target_that_is_wrong_says_what_to_change(tmp_path: Path, text: str, advice: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)

    with pytest.raises(RuleError) as raised:
        read_targets(path)
    assert advice in str(raised.value)


# --- a restart


LAG = Rule("behind", "lag")


def lagging(lag: float) -> Readings:
    return Readings("local", {"lag": (finding("lag", "billing", lag),)})


class Taking:
    """A target that takes everything."""

    name = "webhook"

    def __init__(self) -> None:
        self.is_taken = asyncio.Event()

    async def send(self, event: Event) -> None:
        self.is_taken.set()


async def deliver(alerts: StoredAlerts, target: Taking) -> None:
    """Send an alert that waits."""
    target.is_taken.clear()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(alerts.outboxes[0].run())
        await target.is_taken.wait()
        running.cancel()


@asynccontextmanager
async def stored(path: Path, target: Refusing | Taking, *rules: Rule) -> AsyncIterator[StoredAlerts]:
    async with History(path) as history:
        yield await StoredAlerts.load(history, rules or [LAG], ["local"], [Outbox(target)])


async def test_an_alert_that_stood_before_a_restart_is_not_raised_again(tmp_path: Path) -> None:
    path, target = tmp_path / "console.sqlite", Taking()
    async with stored(path, target) as before:
        await before.judge(lagging(7), 100)
        assert before.outboxes[0].waiting == 1
        await deliver(before, target)
        await before.judge(lagging(8), 130)

    async with stored(path, target) as after:
        await after.judge(lagging(9), 200)
        assert after.outboxes[0].waiting == 0
        assert [(alert.since_s, alert.text) for alert in after.alerts.raised] == [
            (100, "group billing is 9 records behind")
        ]
        await after.judge(lagging(0), 300)
        assert after.outboxes[0].waiting == 1

    async with stored(path, target) as last:
        assert [event.kind for event in last.alerts.events] == ["raised", "cleared"]
        assert last.alerts.raised == []


async def test_an_alert_that_was_not_delivered_before_a_restart_is_sent_after_it(tmp_path: Path) -> None:
    path, target = tmp_path / "console.sqlite", Taking()
    async with stored(path, target) as before:
        await before.judge(lagging(7), 100)

    async with stored(path, target) as after:
        await after.judge(lagging(9), 200)
        assert after.outboxes[0].waiting == 1
        assert [alert.since_s for alert in after.alerts.raised] == [100]
        assert [event.kind for event in after.alerts.events] == ["raised"]


async def test_alerts_of_a_rule_or_a_cluster_that_is_gone_do_not_come_back(tmp_path: Path) -> None:
    path, target = tmp_path / "console.sqlite", Refusing()
    async with stored(path, target) as before:
        await before.judge(lagging(7), 100)

    async with stored(path, target, Rule("other", "lag")) as after:
        assert after.alerts.raised == []


async def test_a_silence_survives_a_restart_and_ends(tmp_path: Path) -> None:
    path, target = tmp_path / "console.sqlite", Refusing()
    async with stored(path, target) as before:
        await before.silence(Silence("behind", "local", "*", 0, 500, "planned work", "anna"))
        await before.judge(lagging(7), 100)
        assert before.outboxes[0].waiting == 0

    async with stored(path, target) as after:
        await after.judge(lagging(7), 200)
        assert after.outboxes[0].waiting == 0
        (silence,) = after.alerts.silences
        await after.end_silence(silence.id, 300, "anna")
        await after.judge(lagging(7), 330)
        assert after.outboxes[0].waiting == 1

    async with stored(path, target) as last:
        assert [event.kind for event in last.alerts.events] == ["silenced", "raised", "silence ended"]
        assert last.alerts.silences == []


async def test_a_history_that_is_full_leaves_the_alerts_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stored(tmp_path / "console.sqlite", Refusing()) as alerts:
        await alerts._history.run(lambda database: database.execute("PRAGMA query_only = 1"))
        await alerts.judge(lagging(7), 100)

        assert len(alerts.alerts.raised) == 1
        assert "the alerts cannot be written to the history" in caplog.text


# --- rules over the history


async def test_rules_are_tested_over_the_hours_that_the_history_has(tmp_path: Path) -> None:
    path = tmp_path / "console.sqlite"
    async with History(path) as history:
        for minute, lag in enumerate([0, 7, 8, 9, None, 9, 0, 5]):
            values = {Series("local", "problems", ""): 0.0, Series("local", "members", "billing"): 0.0}
            values[Series("local", "ends", "orders")] = float(min(minute, 5))
            if lag is not None:
                values[Series("local", "lag", "billing")] = float(lag)
            await history.add(NOW_S + 60 * minute, values)
        await history.add(NOW_S + 480, {Series("local", "unreachable", "local"): 1.0})
    rules = [
        Rule("behind", "lag", for_minutes=2), Rule("grows", "lag_growing", for_minutes=1),
        Rule("alone", "no_members", above=8), Rule("still", "silent_topic"), Rule("away", "unreachable"),
    ]  # fmt: skip

    found = [((event.at_s - NOW_S) // 60, event.kind, event.rule) for event in events_of(path, rules, NOW_S)]

    assert found == [
        (2, "raised", "grows"), (3, "raised", "behind"), (3, "raised", "alone"), (5, "cleared", "grows"),
        (6, "cleared", "behind"), (6, "cleared", "alone"), (6, "raised", "still"), (8, "raised", "away"),
    ]  # fmt: skip
    with pytest.raises(NoHistory, match="there is no history"):
        list(events_of(tmp_path / "none.sqlite", rules, 0))


def test_the_command_tests_rules_over_the_history(tmp_path: Path) -> None:
    rules, path = tmp_path / "rules.toml", tmp_path / "console.sqlite"
    rules.write_text('[[rule]]\nname = "behind"\nkind = "lag"\n')
    asyncio.run(_filled(path))

    done = CliRunner().invoke(alerts_command, ["test", str(rules), "--history", str(path)])

    assert done.exit_code == 0, done.output
    assert done.output.endswith("1 rules would have raised 0 alerts in 24 hours.\n")


async def _filled(path: Path) -> None:
    async with History(path) as history:
        await history.add(
            NOW_S, {Series("local", "problems", ""): 0.0, Series("local", "lag", "billing"): 9.0}
        )


# --- the pages


async def test_an_alert_is_silenced_on_its_page_with_a_reason_and_an_end(
    admin: Admin, address: str, tmp_path: Path
) -> None:
    await admin.topics.create("silenced")
    await admin.groups.commit("late", {TopicPartition("silenced", 0): 0})
    cluster = ClusterSettings("local", address, ClientConfig)
    rules, audit = (Rule("all disks", "disk", above=-1),), tmp_path / "audit.jsonl"
    form = {
        "rule": "all disks",
        "cluster": "local",
        "subject": "*",
        "reason": "moving <b>",
        "lasts": "for 1 hour",
    }
    async with serving(cluster, rules=rules, allows_changes=True, audit=audit) as console:
        for _ in range(600):
            if "Silence it" in (await console.get("/alerts")).text:
                break
            await asyncio.sleep(0.05)
        preview = (await console.get("/alerts/silence", params=form)).text
        token = re.findall(r'name="token" value="([^"]+)"', preview)[0]
        forged = await console.post("/alerts/silence", data={**form, "token": "x"})
        unclear = await console.post("/alerts/silence", data={**form, "reason": "", "token": token})
        done = await console.post("/alerts/silence", data={**form, "token": token})
        page = (await console.get("/alerts")).text
        await console.post("/alerts/silence", data={"end": "1", "token": token})
        ended = (await console.get("/alerts")).text

    assert "is shown" not in preview
    assert "the volume of" in preview
    assert (forged.status_code, unclear.status_code, done.status_code) == (403, 400, 303)
    assert "the reason is missing" in unclear.text
    assert done.headers["location"] == "../alerts"
    assert "moving &lt;b&gt;" in page
    assert "<h2>Silences</h2>" in page
    assert "<h2>Silences</h2>" not in ended
    assert "silence ended" in ended
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["change"], line["cluster"], line["outcome"].split(":")[0]) for line in lines] == [
        ("silence", "local", "refused"),
        ("silence", "local", "refused"),
        ("silence", "local", "begins"),
        ("silence", "local", "done"),
        ("end-silence", "local", "begins"),
        ("end-silence", "local", "done"),
    ]
    assert lines[3]["form"] == form


async def test_a_console_that_only_reads_silences_nothing(address: str) -> None:
    async with serving(ClusterSettings("local", address, ClientConfig)) as console:
        refused = await console.get("/alerts/silence")

    assert refused.status_code == 403
