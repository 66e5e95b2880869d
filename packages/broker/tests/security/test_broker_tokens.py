"""The tokens of a broker for other brokers: when the next one comes, and what happens without one."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from ottla.broker.config import ConfigError, load_broker_config
from ottla.broker.config.logins import LOGIN_MODULES
from ottla.broker.runtime.environment import Environment
from ottla.broker.security.sasl.broker_tokens import (
    Backoff,
    BrokerToken,
    NoToken,
    retried,
    unsecured_token,
)
from ottla.broker.security.sasl.oauthbearer import ClaimRules, Claims, UnsecuredTokens
from ottla.client.errors import AuthenticationFailed
from ottla.client.oauth_tokens import RefreshRules, TokenUnavailable

NOW_MS = 1_700_000_000_000


def test_pauses_double_and_end_with_the_time_for_all() -> None:
    backoff = Backoff(100, 1_000)

    assert [backoff.pause_ms(failures, spent) for failures, spent in ((1, 0), (2, 100), (3, 300))] == [
        100,
        200,
        400,
    ]
    assert backoff.pause_ms(4, 700) == 300
    assert backoff.pause_ms(5, 1_000) == 0
    assert backoff.pause_ms(100_000, 0) == 1_000


class Server:
    """Answers with the next of its tokens or errors, the last one for ever."""

    def __init__(self, *answers: str | Exception) -> None:
        self._answers = list(answers)
        self.asked = 0

    def fetch(self) -> str:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def run(work: Callable[[], str]) -> str:
    return work()


class StoppedClock:
    def now_ms(self) -> int:
        return NOW_MS

    def monotonic_ms(self) -> float:
        return 0.0


def broker_token(server: Server, backoff: Backoff = Backoff(0, 1)) -> BrokerToken:  # noqa: B008
    environment = Environment(StoppedClock())
    return BrokerToken(
        server.fetch, ClaimRules(requires_issued_at=False), RefreshRules(), backoff, environment, run
    )


def jwt(**claims: Any) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({}, claims)]
    return b".".join([*parts, b"sig"]).decode()


TOKEN = jwt(sub="broker", exp=NOW_MS // 1000 + 600)


async def test_a_token_names_the_broker_and_its_end() -> None:
    token = broker_token(Server(TOKEN))
    await token.load()

    assert (token.token(), token.claims) == (TOKEN, Claims("broker", NOW_MS + 600_000))


async def test_a_server_that_does_not_answer_is_asked_again() -> None:
    server = Server(TokenUnavailable("later"), TokenUnavailable("later"), TOKEN)
    times = iter(range(100))

    found = await retried(lambda: run(server.fetch), Backoff(1, 50), lambda: next(times), TokenUnavailable)

    assert (found, server.asked) == (TOKEN, 3)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (TokenUnavailable("http://idp answered 503"), "http://idp answered 503"),
        (AuthenticationFailed("no token for 'me'"), "no token for 'me'"),
        ("opaque", "it is no web token"),
        ("a.b.c", "is no JSON"),
        (jwt(sub="broker"), "'exp' is no time"),
        (jwt(sub="broker", exp=NOW_MS // 1000 - 60), "has expired"),
        (jwt(exp=NOW_MS // 1000 + 60), "'sub' is no text"),
        ("x" * 70_000, "over 65536 characters"),
    ],
)
async def test_a_token_that_cannot_be_used_is_refused_in_one_line_and_the_one_before_stays(
    answer: str | Exception, reason: str
) -> None:
    token = broker_token(Server(TOKEN, answer), Backoff(0, 0))
    await token.load()

    with pytest.raises(NoToken, match=reason) as raised:
        await token.load()
    assert "\n" not in str(raised.value)
    assert token.token() == TOKEN


def test_an_unsecured_token_has_the_claims_of_the_jaas_line() -> None:
    options = {
        "unsecuredLoginStringClaim_sub": "broker",
        "unsecuredLoginNumberClaim_level": "7",
        "unsecuredLoginListClaim_scope": "|a|b",
        "unsecuredLoginLifetimeSeconds": "60",
        "unsecuredLoginExtension_traceId": "1",
        "unsecuredValidatorPrincipalClaimName": "sub",
    }
    token = unsecured_token(options, NOW_MS)
    payload = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))

    assert payload == {
        "sub": "broker",
        "level": 7.0,
        "scope": ["a", "b"],
        "iat": NOW_MS / 1000,
        "exp": NOW_MS / 1000 + 60,
    }
    checked = UnsecuredTokens(ClaimRules(required_scope=frozenset({"a"})), lambda: NOW_MS)
    assert checked.check(token).subject == "broker"


# ---- settings

OWN = "listener.name.sasl_plaintext.oauthbearer."
KEY = f"{OWN}sasl.jaas.config"
MODULE = f"{LOGIN_MODULES['OAUTHBEARER']} required"
BEARER = "org.apache.kafka.common.security.oauthbearer"
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": "https://login.example.com/keys",
    "sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token",
    KEY: f'{MODULE} clientId="broker" clientSecret="s3cret";',
}
UNSECURED_VALIDATOR = f"{BEARER}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"sasl.oauthbearer.token.endpoint.url": "file:///run/token", KEY: f"{MODULE};"},
        {"sasl.oauthbearer.token.endpoint.url": "", KEY: f'{MODULE} unsecuredLoginStringClaim_sub="broker";'},
        {"sasl.login.callback.handler.class": f"{BEARER}.OAuthBearerLoginCallbackHandler"},
        {"sasl.login.callback.handler.class": f"{BEARER}.secured.OAuthBearerLoginCallbackHandler"},
        {"sasl.server.callback.handler.class": f"{BEARER}.OAuthBearerValidatorCallbackHandler"},
        {"sasl.server.callback.handler.class": f"{BEARER}.secured.OAuthBearerValidatorCallbackHandler"},
        {
            f"{OWN}sasl.server.callback.handler.class": UNSECURED_VALIDATOR,
            "sasl.oauthbearer.jwks.endpoint.url": "",
        },
        {"sasl.login.class": f"{BEARER}.internals.OAuthBearerRefreshingLogin"},
    ],
)
def test_settings_of_kafka_are_accepted_without_a_warning(changed: dict[str, str]) -> None:
    assert load_broker_config({**SETTINGS, **changed}).warnings == ()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (
            {"sasl.oauthbearer.token.endpoint.url": ""},
            f"sasl.oauthbearer.token.endpoint.url must be set, with clientId and clientSecret in {KEY}: "
            "brokers log in with tokens",
        ),
        ({KEY: f'{MODULE} clientId="broker";'}, f"{KEY} must have clientId and clientSecret"),
        (
            {"sasl.oauthbearer.token.endpoint.url": "ftp://x"},
            "must be an https, http or file URL, not 'ftp://x'",
        ),
        (
            {"sasl.oauthbearer.token.endpoint.url": "", KEY: f'{MODULE} unsecuredLoginStringClaim_exp="1";'},
            "the option unsecuredLoginStringClaim_exp must not be set",
        ),
        (
            {"sasl.oauthbearer.token.endpoint.url": "", KEY: f'{MODULE} unsecuredLoginNumberClaim_a="x";'},
            "the option unsecuredLoginNumberClaim_a must be a number",
        ),
        (
            {"sasl.oauthbearer.token.endpoint.url": "", KEY: f'{MODULE} unsecuredLoginLifetimeSeconds="x";'},
            "the option unsecuredLoginLifetimeSeconds must be a whole number",
        ),
        ({"sasl.login.callback.handler.class": "org.example.Handler"}, "other Java classes cannot run here"),
        (
            {f"{OWN}sasl.server.callback.handler.class": "org.example.V"},
            "sasl.server.callback.handler.class must be empty or one of org.apache.kafka.common",
        ),
        ({"sasl.login.class": "org.example.Login"}, "other Java classes cannot run here"),
        ({"sasl.client.callback.handler.class": "org.example.C"}, "other Java classes cannot run here"),
        ({"sasl.login.refresh.window.factor": "0.4"}, "sasl.login.refresh.window.factor must be"),
        ({"sasl.login.refresh.window.jitter": "0.3"}, "sasl.login.refresh.window.jitter must be"),
        ({"sasl.login.refresh.min.period.seconds": "901"}, "sasl.login.refresh.min.period.seconds must be"),
        ({"sasl.login.refresh.buffer.seconds": "-1"}, "sasl.login.refresh.buffer.seconds must be"),
    ],
)
def test_a_wrong_setting_refuses_the_start_in_one_line(changed: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_broker_config({**SETTINGS, **changed})

    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "s3cret" not in str(raised.value)
