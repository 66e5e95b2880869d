"""Settings of logins under the names of Java and librdkafka: login modules, and settings of tokens."""

from __future__ import annotations

import pytest

from ottla.client.config import ClientConfig
from ottla.client.oauth_tokens import RefreshRules
from ottla.client.retry import Backoff
from ottla.client.settings import SettingError, from_properties

# --- login modules of Java

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.mark.parametrize(
    ("options", "password"),
    [
        ("username='anna' password='a \"b\"';", 'a "b"'),
        ('username="anna" password="a\\tb\\101";', "a\tbA"),
        ('username=anna /* password="old" */ password=b-1;', "b-1"),
        ('password="username=x;" username="anna";', "username=x;"),
    ],
)
def test_a_login_module_is_read_as_kafka_reads_it(options: str, password: str) -> None:
    properties = {"security.protocol": "SASL_SSL", "sasl.jaas.config": f"{MODULE} {options}"}

    security = from_properties(ClientConfig, properties).security

    assert (security.sasl_username, security.sasl_password) == ("anna", password)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ('username="anna" password="s3cret"', "not terminated by semi-colon"),
        ('username="anna" password=31337;', "Value not specified for key 'password'"),
        ('username="anna";', "a login module with username and password"),
        (f'username="anna" password="s3cret"; {MODULE};', "contains 2 login modules"),
    ],
)
def test_a_login_module_that_kafka_refuses_is_refused_without_its_secret(options: str, words: str) -> None:
    properties = {"security.protocol": "SASL_SSL", "sasl.jaas.config": f"{MODULE} {options}"}

    with pytest.raises(
        SettingError, match=rf"sasl.jaas.config cannot be the value given: .*{words}"
    ) as refused:
        from_properties(ClientConfig, properties)

    assert "s3cret" not in str(refused.value)
    assert "31337" not in str(refused.value)


# --- settings of tokens

BEARER = "org.apache.kafka.common.security.oauthbearer"
OF_SERVER = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token",
    "sasl.oauthbearer.client.credentials.client.id": "me",
    "sasl.oauthbearer.client.credentials.client.secret": "s3cret",
}


def test_kafkas_settings_of_logins_change_how_tokens_are_asked_for() -> None:
    plain = from_properties(ClientConfig, OF_SERVER).security.token_source
    changed = from_properties(
        ClientConfig,
        OF_SERVER
        | {
            "sasl.login.connect.timeout.ms": "1500",
            "sasl.login.read.timeout.ms": "2500",
            "sasl.login.retry.backoff.ms": "7",
            "sasl.login.retry.backoff.max.ms": "70",
            "sasl.login.refresh.window.factor": "0.6",
            "sasl.login.refresh.window.jitter": "0.1",
            "sasl.login.refresh.min.period.seconds": "5",
            "sasl.login.refresh.buffer.seconds": "30",
            "sasl.oauthbearer.header.urlencode": "true",
        },
    ).security.token_source

    assert plain is not None
    assert changed is not None
    assert (plain.connect_timeout_s, plain.read_timeout_s, plain.backoff) == (10, 10, Backoff(100, 10_000, 0))
    assert (plain.refresh, plain.quotes_credentials) == (RefreshRules(), False)
    assert (changed.connect_timeout_s, changed.read_timeout_s, changed.backoff) == (
        1.5,
        2.5,
        Backoff(7, 70, 0),
    )
    assert changed.refresh == RefreshRules(window_factor=0.6, window_jitter=0.1, min_period_s=5, buffer_s=30)
    assert changed.quotes_credentials


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("sasl.login.refresh.window.factor", "0.4", "must be at least 0.5"),
        ("sasl.login.refresh.window.jitter", "0.3", "must be at most 0.25"),
        ("sasl.login.refresh.min.period.seconds", "901", "must be at most 900"),
        ("sasl.login.refresh.buffer.seconds", "-1", "must be at least 0"),
        ("sasl.login.connect.timeout.ms", "0", "must be at least 1"),
        ("sasl.login.callback.handler.class", "com.example.Handler", "no class of Java runs here"),
        ("sasl.oauthbearer.method", "azure", "give oidc"),
    ],
)
def test_settings_of_logins_that_cannot_be_are_refused(key: str, value: str, words: str) -> None:
    with pytest.raises(SettingError, match=rf"{key} .*{words}"):
        from_properties(ClientConfig, OF_SERVER | {key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sasl.login.callback.handler.class", f"{BEARER}.OAuthBearerLoginCallbackHandler"),
        ("sasl.login.callback.handler.class", f"{BEARER}.secured.OAuthBearerLoginCallbackHandler"),
        ("sasl.oauthbearer.method", "OIDC"),
    ],
)
def test_the_classes_of_kafka_that_do_what_is_done_here_are_accepted_in_silence(
    key: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = from_properties(ClientConfig, OF_SERVER | {key: value})

    assert config == from_properties(ClientConfig, OF_SERVER)
    assert caplog.records == []
