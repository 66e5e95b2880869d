"""The logins of a broker's listeners: which of them are evaluated on threads, and how many."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ottla.broker.api import sasl_authenticate
from ottla.broker.api.testing import FakeSession
from ottla.broker.config import broker_config_from
from ottla.broker.metrics import Metrics
from ottla.broker.requests.context import CloseConnection, RequestContext
from ottla.broker.runtime import threads
from ottla.broker.runtime.background_tasks import BackgroundTasks
from ottla.broker.runtime.environment import Environment
from ottla.broker.security.sasl.mechanisms import Identity
from ottla.broker.security.sasl.scram import SHA_256, ScramCredential, ScramHash, ScramUser, UnknownUsers
from ottla.broker.server.listener_logins import BrokerLogins
from ottla.protocol.api import ApiKey, RequestHeader
from ottla.protocol.messages.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse

CREDENTIAL = ScramCredential.from_password(SHA_256, "secret", b"salt")
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
    "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="b";'
    ),
}


class Logins:
    """Logins by SCRAM at a listener, with a user that is found on some thread."""

    def __init__(self) -> None:
        self.found_on: list[str] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def find(self, kind: ScramHash, name: str, by_token: bool) -> ScramUser:
        self.found_on.append(threading.current_thread().name)
        self.go_on.wait(60)
        return ScramUser(CREDENTIAL, Identity(name))

    async def open(self) -> None:
        environment, metrics = Environment(), Metrics()
        tasks = BackgroundTasks(metrics, environment.clock)
        self._logins = BrokerLogins(self.find, UnknownUsers(b"secret"), environment, tasks, metrics)
        self._config = broker_config_from(SETTINGS)
        await self._logins.configure(self._config)

    async def log_in(self, extension: str = "") -> SaslAuthenticateResponse | None:
        (listener,) = self._config.parsed_listeners
        begin = self._logins.begin_on(listener)
        assert begin is not None
        session = FakeSession(login=begin())
        assert session.login is not None
        session.login.handshake("SCRAM-SHA-256", 1)
        context = RequestContext(RequestHeader(ApiKey.SASL_AUTHENTICATE, 1, 0, None), session, 0.0)
        request = SaslAuthenticateRequest(auth_bytes=f"n,,n=name,r=nonce{extension}".encode())
        return await sasl_authenticate.handle(self, request, context)


async def test_the_password_of_a_delegation_token_is_hashed_on_a_thread_and_users_are_found_at_once() -> None:
    logins = Logins()
    await logins.open()

    for extension in ("", ",tokenauth=true", ",TokenAuth=TRUE"):
        answer = await logins.log_in(extension)
        assert answer is not None
        assert answer.auth_bytes.startswith(b"r=nonce")

    main, *others = logins.found_on
    assert main == threading.current_thread().name
    assert [name.partition("_")[0] for name in others] == ["logins", "logins"]


async def test_a_login_beyond_those_that_wait_for_a_thread_is_closed_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "MOST_LOGINS", 3)
    logins = Logins()
    await logins.open()
    logins.go_on.clear()

    waiting = [asyncio.ensure_future(logins.log_in(",tokenauth=true")) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(CloseConnection):
        await logins.log_in(",tokenauth=true")
    logins.go_on.set()
    assert all(await asyncio.gather(*waiting))
    assert await logins.log_in(",tokenauth=true") is not None
