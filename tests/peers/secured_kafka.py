"""Brokers with a listener for each security protocol: TLS, mutual TLS, SASL, and both."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from ottla.client.settings import read_properties
from peers.apache_kafka import ApacheKafka, Listener, listener_settings, run_tool
from peers.certificates import Authority
from peers.kraft_kafka import KraftKafka
from peers.processes import free_port

USER = "anna"
STRANGER = "josef"
"""A user with the same password, and no right but those that a test gives."""
PASSWORD = "a secret=1"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SESSION_MS = 3_000
"""The lifetime of a login on the listener SESSION, unless it is renewed (KIP-368)."""

_PROTOCOLS = {
    "LOGIN": "SASL_PLAINTEXT",
    "SESSION": "SASL_PLAINTEXT",
    "ENCRYPTED": "SSL",
    "MUTUAL": "SSL",
    "BOTH": "SASL_SSL",
    "STRICT": "SASL_SSL",
}
_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_MODULES = "org.apache.kafka.common.security"
_INDENTATION = 13
"""Of the lines that a secured start prints."""


@dataclass(frozen=True)
class SecuredKafka:
    """A running broker, and the files that its clients need."""

    kind: str
    listeners: dict[str, Listener]
    authority: Authority
    cafile: Path
    other_cafile: Path
    certfile: Path
    keyfile: Path
    bootstrap_servers: str
    """The address of a listener for tests' administrators, where everyone is a super user."""

    def at(self, listener: str) -> str:
        """Return the address of LOGIN, SESSION, ENCRYPTED, MUTUAL, BOTH or STRICT."""
        return f"127.0.0.1:{self.listeners[listener].port}"


@contextmanager
def secured_kafka(folder: Path, kind: str) -> Iterator[SecuredKafka]:
    """Run ottla, kafka-3.9 or kafka-4.4 with all listeners; each mechanism has the credentials of `USER`.

    It has an authorizer, for which `USER` and clients without a login are super users. STRICT wants a login
    and a certificate.
    """
    authority = Authority(folder / "certificates")
    other = Authority(folder / "certificates", "other")
    client = authority.sign("client")
    listeners = {name: Listener(protocol, free_port()) for name, protocol in _PROTOCOLS.items()}
    settings = {"offsets.topic.num.partitions": "4", **_tls(folder, authority), **_sasl(), **_access(kind)}
    with _runner(kind, folder / "broker", settings, listeners) as broker:
        if kind == "ottla":
            asyncio.run(_set_passwords(broker.bootstrap_servers))
        elif kind == "kafka-3.9":
            _let_in(broker.bootstrap_servers)
        yield SecuredKafka(
            kind, listeners, authority, authority.cafile, other.cafile, *client, broker.bootstrap_servers
        )


def _runner(
    kind: str, folder: Path, settings: dict[str, str], listeners: dict[str, Listener]
) -> BrokerProcess | ApacheKafka | KraftKafka:
    if kind == "ottla":
        return _ottla(folder, settings, listeners)
    if kind == "kafka-3.9":
        return ApacheKafka(folder, settings, heap="384m", listeners=listeners)
    users = [f"{name}=[name={USER},password={PASSWORD}]" for name in _SCRAM]
    arguments = [part for user in users for part in ("--add-scram", user)]
    return KraftKafka(folder, settings, heap="384m", listeners=listeners, format_arguments=arguments)


def _ottla(folder: Path, settings: dict[str, str], listeners: dict[str, Listener]) -> BrokerProcess:
    # Tokens without a signature are taken where the broker is told so, and Kafka takes them unasked.
    unsigned = {
        key: value.replace(" required ", ' required unsecuredValidatorPrincipalClaimName="sub" ')
        for key, value in settings.items()
        if key.endswith("oauthbearer.sasl.jaas.config")
    }
    plain = Listener("PLAINTEXT", free_port())
    broker = BrokerProcess(folder, settings | unsigned | listener_settings({"PLAINTEXT": plain, **listeners}))
    broker.port = plain.port
    return broker


async def _set_passwords(bootstrap_servers: str) -> None:
    async with Admin(bootstrap_servers) as admin:
        await admin.users.set_password(USER, PASSWORD, "SCRAM-SHA-256")
        await admin.users.set_password(USER, PASSWORD, "SCRAM-SHA-512")


def _access(kind: str) -> dict[str, str]:
    on_zookeeper = "kafka.security.authorizer.AclAuthorizer"
    on_quorum = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    return {
        "authorizer.class.name": on_quorum if kind == "kafka-4.4" else on_zookeeper,
        "super.users": f"User:ANONYMOUS;User:{USER};User:CN=client",
        "delegation.token.secret.key": "a key for tests",
    }


def _tls(folder: Path, authority: Authority) -> dict[str, str]:
    certificate, key = authority.sign("broker")
    store = folder / "certificates" / "broker.pem"
    store.write_text(key.read_text() + certificate.read_text())
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.cafile),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.strict.ssl.client.auth": "required",
    }


def _sasl() -> dict[str, str]:
    logins = {
        "plain": f'plain.PlainLoginModule required user_{USER}="{PASSWORD}" user_{STRANGER}="{PASSWORD}"',
        "scram-sha-256": "scram.ScramLoginModule required",
        "scram-sha-512": "scram.ScramLoginModule required",
        "oauthbearer": 'oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker"',
    }
    settings: dict[str, str] = {}
    for listener in ("login", "session", "both", "strict"):
        prefix = f"listener.name.{listener}"
        settings[f"{prefix}.sasl.enabled.mechanisms"] = ",".join(MECHANISMS)
        for mechanism, login in logins.items():
            settings[f"{prefix}.{mechanism}.sasl.jaas.config"] = f"{_MODULES}.{login};"
            settings[f"{prefix}.{mechanism}.connections.max.reauth.ms"] = (
                str(SESSION_MS) if listener == "session" else "0"
            )
    return settings


def _let_in(bootstrap_servers: str) -> None:
    secrets = ",".join(f"{name}=[password={PASSWORD}]" for name in _SCRAM)
    run_tool(
        "kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap_servers, "--alter",
        "--add-config", secrets, "--entity-type", "users", "--entity-name", USER,
    )  # fmt: skip


# --- a broker that is secured by one option


@contextmanager
def started_secure(data_dir: Path, profiles: Path) -> Iterator[str]:
    """Run `ottla broker start --secure`; yield its output up to the end of the introduction."""
    command = [
        sys.executable, "-m", "ottla.broker", "start", "--data-dir", str(data_dir), "--listen",
        "127.0.0.1:0", "--secure", "--set", "offsets.topic.num.partitions=1",
    ]  # fmt: skip
    environment = os.environ | {"OTTLA_PROFILES": str(profiles)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        lines: list[str] = []
        try:
            while not lines or not re.search(r"ottla acl add|Secured: connect", lines[-1]):
                line = process.stdout.readline()
                assert line, "".join(lines)
                lines.append(line)
            yield "".join(lines)
        finally:
            process.terminate()
            process.wait(30)


def printed_section(said: str, kind: str) -> list[str]:
    """Return the lines that a secured start prints for Java, librdkafka or Python."""
    found = re.search(rf"^{kind} .*\n(?: +.*\n)*", said, re.MULTILINE)
    assert found is not None, said
    return [line[_INDENTATION:] for line in found[0].splitlines()]


def printed_settings(said: str, kind: str) -> dict[str, str]:
    """Return the settings in the file that a secured start prints for Java or librdkafka."""
    return read_properties(printed_section(said, kind)[0].rpartition(" ")[2])
