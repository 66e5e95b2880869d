"""Send alerts to their targets: a webhook, mail, a topic. Each has a queue of its own and bounded retries."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections import OrderedDict
from dataclasses import replace
from email.message import EmailMessage
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgpack

from ottla.client.config import ClientConfig
from ottla.client.config_definition import SettingError
from ottla.client.errors import ClientError
from ottla.client.profiles import SecretSource, read_profile
from ottla.console.watch.alerts import Event, moment
from ottla.console.watch.rule_files import AlertTopic, Mail, Targets, secret_of
from ottla.producer import Producer, ProducerConfig
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    import httpx2

_log = logging.getLogger(__name__)

MOST_WAITING: Final = 1_000
MOST_REMEMBERED: Final = 1_000
"""Ids of alerts that were put, by which a second copy is dropped."""
ATTEMPTS: Final = 5
_TIMEOUT_S: Final = 10.0
_FIRST_PAUSE_S: Final = 1.0
_MOST_SUBJECT: Final = 150


class NotSent(Exception):
    """A target did not take an alert; the message says why, and holds no secret."""


class Target(Protocol):
    """Takes alerts."""

    @property
    def name(self) -> str:
        """Its name for people: webhook, mail, topic."""

    async def send(self, event: Event) -> None:
        """Send one event. Raises NotSent."""


class Outbox:
    """The alerts that wait for a target. `put` never waits; with too many that wait, the oldest is dropped.

    An alert is tried five times, with pauses of 1, 4, 16 and 64 seconds, and given up then.
    """

    def __init__(self, target: Target, *, first_pause_s: float = _FIRST_PAUSE_S) -> None:
        self.target = target
        self.sent = 0
        self.given_up = 0
        """Alerts that were dropped, or given up after the last attempt."""
        self.failure = ""
        """The reason of the last failure; "" once one is taken again."""
        self._first_pause_s = first_pause_s
        self._waiting: asyncio.Queue[Event] = asyncio.Queue(MOST_WAITING)
        self._put: OrderedDict[str, None] = OrderedDict()
        self._pending: set[str] = set()

    @property
    def waiting(self) -> int:
        """Alerts that wait."""
        return self._waiting.qsize()

    def is_pending(self, message: str) -> bool:
        """Whether the message of an id waits, or is being tried."""
        return message in self._pending

    def put(self, event: Event) -> None:
        """Send an event when those before it are sent. A second copy of the same one is dropped."""
        if event.id in self._put:
            return
        self._put[event.id] = None
        if len(self._put) > MOST_REMEMBERED:
            self._put.popitem(last=False)
        if self._waiting.full():
            self._give_up(self._waiting.get_nowait(), "too many wait")
        self._waiting.put_nowait(event)
        self._pending.add(event.id)

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._send(await self._waiting.get())

    async def _send(self, event: Event) -> None:
        pause_s = self._first_pause_s
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with asyncio.timeout(2 * _TIMEOUT_S):
                    await self.target.send(event)
            except (NotSent, TimeoutError) as error:
                self.failure = str(error) or f"no answer within {2 * _TIMEOUT_S:g} s"
                facts = {"target": self.target.name, "attempt": attempt, "of": ATTEMPTS}
                _log.warning("an alert is not sent", extra={**facts, "reason": self.failure})
            else:
                self.sent += 1
                self.failure = ""
                self._pending.discard(event.id)
                return
            if attempt < ATTEMPTS:
                await asyncio.sleep(pause_s)
                pause_s *= 4
        self._give_up(event, self.failure)

    def _give_up(self, event: Event, reason: str) -> None:
        self.given_up += 1
        self._pending.discard(event.id)
        facts = {"target": self.target.name, "text": event.text, "reason": reason}
        _log.error("an alert is given up", extra=facts)


def outboxes(targets: Targets, *, first_pause_s: float = _FIRST_PAUSE_S) -> tuple[Outbox, ...]:
    """Return an outbox for each target that a file names."""
    found: list[Target] = []
    if targets.webhook is not None:
        found.append(Webhook(targets.webhook, targets.folder))
    if targets.mail is not None:
        found.append(MailTarget(targets.mail))
    if targets.topic is not None:
        found.append(TopicTarget(targets.topic))
    return tuple(Outbox(target, first_pause_s=first_pause_s) for target in found)


def facts_of(event: Event) -> dict[str, Any]:
    """Return an event as it is posted and written."""
    return {
        "id": event.id, "status": event.kind, "rule": event.rule, "cluster": event.cluster,
        "subject": event.subject, "text": f"{event.kind}: {event.text}", "at_s": event.at_s,
        "since_s": event.since_s,
    }  # fmt: skip


class Webhook:
    """Posts events as JSON."""

    name = "webhook"

    def __init__(self, url: str | SecretSource, folder: Path | None = None) -> None:
        self._url = url
        self._folder = folder or Path()

    async def send(self, event: Event) -> None:
        """Post one event. Raises NotSent."""
        try:
            url = await asyncio.to_thread(secret_of, self._url, self._folder)
            transport = await asyncio.to_thread(_transport, url)
            async with asyncio.timeout(_TIMEOUT_S), transport:
                status = await _posted(transport, url, facts_of(event))
        except SettingError as error:
            raise NotSent(str(error)) from None
        except TimeoutError:
            raise NotSent(f"no answer within {_TIMEOUT_S:g} s") from None
        except Exception as error:
            raise NotSent(_why_not_posted(error)) from None
        if status >= HTTPStatus.MULTIPLE_CHOICES:
            raise NotSent(f"it answered {status}")


def _transport(url: str) -> httpx2.AsyncHTTPTransport:
    """Return the connection to the host of an address, through the proxy that the environment names for it.

    On a thread: the import and the authorities take longer than the loop may stand. A client above it would
    write each address to its log.
    """
    from urllib.request import getproxies, proxy_bypass

    import httpx2

    at = httpx2.URL(url)
    proxy = None if proxy_bypass(at.host) else getproxies().get(at.scheme)
    return httpx2.AsyncHTTPTransport(verify=ssl.create_default_context(), proxy=proxy)


async def _posted(transport: httpx2.AsyncHTTPTransport, url: str, facts: dict[str, Any]) -> int:
    """Post facts, and return the status; the body of the answer is not read, and no redirect followed."""
    import httpx2

    request = httpx2.Request("POST", url, json=facts, headers={"user-agent": "ottla-console"})
    answer = await transport.handle_async_request(request)
    await answer.aclose()
    return int(answer.status_code)


def _why_not_posted(error: Exception) -> str:
    """Return the reason of a failure. The address may hold a secret, and most texts of errors the address."""
    import httpx2

    if isinstance(error, httpx2.ConnectError | OSError):
        return " ".join(str(error).split()) or type(error).__name__
    return type(error).__name__


class MailTarget:
    """Sends events as mail, over TLS unless the file says otherwise."""

    name = "mail"

    def __init__(self, mail: Mail) -> None:
        self._mail = mail

    async def send(self, event: Event) -> None:
        """Send one event. Raises NotSent."""
        import aiosmtplib

        mail = self._mail
        try:
            password = None if mail.password is None else await asyncio.to_thread(self._password)
            await aiosmtplib.send(
                mail_of(event, mail),
                hostname=mail.server.host, port=mail.server.port, timeout=_TIMEOUT_S,
                use_tls=mail.security == "tls", start_tls=mail.security == "starttls",
                username=mail.username, password=password,
                tls_context=None if mail.security == "none" else await asyncio.to_thread(self._context),
            )  # fmt: skip
        except aiosmtplib.SMTPAuthenticationError:
            raise NotSent(f"the server refused the login of {mail.username}") from None
        except (aiosmtplib.SMTPException, OSError, SettingError, ValueError) as error:
            raise NotSent(" ".join(str(error).split()) or type(error).__name__) from None

    def _password(self) -> str:
        assert self._mail.password is not None
        return secret_of(self._mail.password, self._mail.folder)

    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._mail.cafile)


def mail_of(event: Event, mail: Mail) -> EmailMessage:
    """Return the mail of an event; names of groups and topics become no header lines of their own."""
    message = EmailMessage()
    message["From"] = mail.sender
    message["To"] = ", ".join(mail.recipients)
    message["Subject"] = in_one_line(f"[{event.cluster}] {event.kind}: {event.rule}: {event.text}")[
        :_MOST_SUBJECT
    ]
    message["Message-ID"] = f"<{event.id}@ottla-console>"
    message["Auto-Submitted"] = "auto-generated"
    lines = (
        f"{event.kind}: {event.text}", "", f"Rule: {event.rule}", f"Cluster: {event.cluster}",
        f"Subject: {event.subject}", f"Since: {moment(event.since_s)}", f"Time: {moment(event.at_s)}",
    )  # fmt: skip
    message.set_content("\n".join(map(in_one_line, lines)) + "\n")
    return message


def in_one_line(text: str) -> str:
    """Return a text, which may come from a client, so that it forges no lines."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


class TopicTarget:
    """Writes events to a topic, with the alert's names as the key."""

    name = "topic"

    def __init__(self, topic: AlertTopic) -> None:
        self._topic = topic

    async def send(self, event: Event) -> None:
        """Write one event. Raises NotSent."""
        facts = facts_of(event)
        value = json.dumps(facts).encode() if self._topic.format == "json" else msgpack.packb(facts)
        key = "/".join((event.cluster, event.rule, event.subject)).encode(errors="replace")
        try:
            config = await asyncio.to_thread(self._config)
            async with (
                asyncio.timeout(_TIMEOUT_S),
                Producer(config=ProducerConfig(client=config)) as producer,
            ):
                await producer.send_and_wait(self._topic.name, value, key=key)
        except (ClientError, KafkaError, SettingError, OSError, ValueError) as error:
            raise NotSent(" ".join(str(error).split()) or type(error).__name__) from None

    def _config(self) -> ClientConfig:
        if self._topic.profile is None:
            return ClientConfig(bootstrap_servers=self._topic.bootstrap_servers or "")
        profile = read_profile(self._topic.profile)
        return replace(profile.config(), bootstrap_servers=profile.servers or "")
