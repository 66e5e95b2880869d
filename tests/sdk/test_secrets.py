"""No secret that brokers and clients use is in a log at DEBUG, a repr, an error, a page or an answer."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import secrets
import ssl
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import jwt
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec

from ottla.admin import Admin
from ottla.admin.configs import BROKER
from ottla.broker.config import load_broker_config
from ottla.broker.config.logins import LOGIN_MODULES
from ottla.broker.security.sasl.mechanisms import PlainUsers
from ottla.broker.security.sasl.scram import SCRAM_HASHES, ScramCredential
from ottla.broker.security.tls.stores import read_key_store, read_trust_store
from ottla.broker.security.tls.testing import Authority
from ottla.broker.server.secure_setup import prepare
from ottla.broker.testing import BrokerFailed, BrokerProcess, free_port
from ottla.client.authentication import OAuthBearer, Plain, Scram
from ottla.client.cli import main
from ottla.client.config import ClientConfig
from ottla.client.errors import ClientError
from ottla.client.jaas import parse_jaas
from ottla.client.key_stores import Certificate
from ottla.client.log_formats import FactsFormatter
from ottla.client.oauth_tokens import Token, TokenSource
from ottla.client.page_server import PageAccess
from ottla.client.security import SecurityConfig
from ottla.client.settings import SettingError, from_properties
from ottla.consumer import Consumer
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.record import ConsumerRecord
from ottla.consumer.zookeeper import ZookeeperConsumerConfig
from ottla.producer import Producer, SyncProducer
from ottla.producer.config import ProducerConfig
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.sasl import SaslAuthenticateRequest
from ottla.protocol.messages.scram_credentials import ScramCredentialUpsertion
from ottla.streams import App
from ottla.zookeeper.client_security import client_security_from
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.embedded.access import access_to, read_or_make_secret, write_address
from ottla.zookeeper.kazoo_session import KazooSession
from ottla.zookeeper.session import NoNode
from ottla.zookeeper.testing import Background

BOUND_S = 60.0
SLOW_CALLBACK_S = 0.0005
"""With asyncio's debugging each longer call is logged with its arguments."""


class Secrets:
    """The secrets of a run, by what they are for, and the looks for them."""

    def __init__(self) -> None:
        self._by_purpose: dict[str, str] = {}
        self._forms: dict[str, str] = {}

    def new(self, purpose: str) -> str:
        """Make a secret."""
        return self.add(purpose, f"hush-{purpose}-{secrets.token_hex(8)}")

    def add(self, purpose: str, secret: str) -> str:
        """Look for a secret from now on, in clear and in the forms in which it travels."""
        self._by_purpose[purpose] = secret
        data = secret.encode()
        token = base64.b64encode(b"\0anna\0" + data).decode().rstrip("=")
        for form, text in {
            "in clear": secret,
            "in base64": base64.b64encode(data).decode().rstrip("="),
            "in hexadecimal": data.hex(),
            "in PLAIN's message": token,
            "in OAUTHBEARER's message": base64.b64encode(f"n,,\x01auth=Bearer {secret}".encode()).decode()[
                :60
            ],
        }.items():
            self._forms[text] = f"{purpose} {form}"
        return secret

    def credential(self, purpose: str, credential: ScramCredential) -> None:
        """Look for the keys of a credential, too."""
        for key in (credential.stored_key, credential.server_key):
            for text in (base64.b64encode(key).decode().rstrip("="), key.hex(), repr(key)[2:-1]):
                self._forms[text] = f"{purpose}, a key of its credential"

    def found_in(self, text: str) -> list[str]:
        """Return which secrets a text has, each with the words before it."""
        return [
            f"{name}: …{text[max(0, at - 120) : at]}"
            for form, name in self._forms.items()
            if (at := text.find(form)) >= 0
        ]


class _Lines(logging.Handler):
    """Keeps the lines of a process's logs, as a broker writes them."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(FactsFormatter())
        self.text: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.text.append(self.format(record))


@contextmanager
def logged_at_debug() -> Iterator[list[str]]:
    """Keep all lines of this process at DEBUG: the clients', kazoo's, asyncio's and the coordinator's."""
    lines, root = _Lines(), logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in ("", "kazoo", "kazoo.client", "asyncio")}
    root.addHandler(lines)
    for name in levels:
        logging.getLogger(name).setLevel(logging.DEBUG)
    try:
        yield lines.text
    finally:
        root.removeHandler(lines)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


class TalkativeBroker(BrokerProcess):
    """A broker that logs at DEBUG, asyncio too, and reads its settings from a file."""

    def _command(self, flags: list[str]) -> list[str]:
        command = super()._command(flags)
        return ["env", "PYTHONASYNCIODEBUG=1", *command, "--log-level", "debug"]


@pytest.fixture(scope="module")
def known() -> Secrets:
    return Secrets()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secrets")


class World:
    """A coordinator with a secret and a broker with all kinds of them; what its clients need."""

    def __init__(self, place: Path, known: Secrets) -> None:
        self.place, self.known = place, known
        self.authority = Authority()
        self.cafile = self.authority.write(place / "ca.pem")
        self.password = known.new("password")
        self.token_key = ec.generate_private_key(ec.SECP256R1())
        self.metrics_token = known.new("metrics-token")
        self.metrics_port = free_port("127.0.0.1")
        self.zookeeper = place / "zookeeper"
        self.key_password = known.new("client-key")
        certificate = self.authority.sign("anna")
        known.add("private key of the client", _middle(certificate.key_pem()))
        self.certfile, self.keyfile = place / "anna.pem", place / "anna.key"
        self.certfile.write_text(certificate.chain_pem)
        self.keyfile.write_text(certificate.key_pem(self.key_password))
        self.both = place / "both.pem"
        self.both.write_text(certificate.chain_pem + certificate.key_pem(self.key_password))

    def settings(self) -> dict[str, str]:
        """Return the settings of the broker."""
        known, place = self.known, self.place
        key = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.token_key.public_key()))
        (place / "jwks.json").write_text(json.dumps({"keys": [{**key, "kid": "key"}]}))
        store = known.new("keystore")
        certificate = self.authority.sign("broker")
        (place / "broker.p12").write_bytes(certificate.pkcs12(store))
        known.add("private key of the broker", _middle(certificate.key_pem()))
        pages = known.new("metrics-key")
        page = self.authority.sign("metrics")
        (place / "metrics.pem").write_text(page.chain_pem + page.key_pem(pages))
        token = place / "metrics.token"
        token.touch(0o600)
        token.write_text(self.metrics_token)
        users = f'username="admin" password="{self.password}" user_admin="{self.password}"'
        prefix = "listener.name.sasl_ssl"
        return {
            "broker.id": "1",
            "listeners": f"SASL_SSL://127.0.0.1:{free_port('127.0.0.1')}",
            "security.inter.broker.protocol": "SASL_SSL",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            f"{prefix}.plain.sasl.jaas.config": (
                f'{LOGIN_MODULES["PLAIN"]} required {users} user_anna="{self.password}";'
            ),
            "sasl.oauthbearer.jwks.endpoint.url": (place / "jwks.json").as_uri(),
            "sasl.oauthbearer.expected.audience": "kafka",
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(place / "broker.p12"),
            "ssl.keystore.password": store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": self.authority.pem,
            f"{prefix}.ssl.client.auth": "required",
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:admin;User:anna",
            "delegation.token.secret.key": known.new("token-key"),
            "zookeeper.connect": (self.zookeeper / "address").read_text().strip(),
            "zookeeper.sasl.jaas.file": str(self.zookeeper / "jaas.conf"),
            "zookeeper.set.acl": "true",
            "metrics.port": str(self.metrics_port),
            "metrics.ssl.keystore.location": str(place / "metrics.pem"),
            "metrics.ssl.key.password": pages,
            "metrics.token.file": str(token),
        }

    def client(self, mechanism: str, password: str, user: str = "anna") -> dict[str, Any]:
        """Return the settings of a client by a mechanism; of OAUTHBEARER the password is the token."""
        tls = {
            "security_protocol": "SASL_SSL",
            "ssl_cafile": self.cafile,
            "ssl_certfile": str(self.certfile),
            "ssl_keyfile": str(self.keyfile),
            "ssl_key_password": self.key_password,
            "sasl_mechanism": mechanism,
        }
        if mechanism == "OAUTHBEARER":
            return tls | {"sasl_oauth_token_provider": lambda: password}
        return tls | {"sasl_username": user, "sasl_password": password}

    def token(self) -> str:
        """Return a signed token for `anna`."""
        now_s = int(time.time())
        claims = {"sub": "anna", "aud": "kafka", "iat": now_s, "exp": now_s + 600}
        return self.known.add("token", jwt.encode(claims, self.token_key, "ES256", {"kid": "key"}))


def _middle(pem: str) -> str:
    """Return a line of a private key's text."""
    return pem.splitlines()[1]


@pytest.fixture(scope="module")
def world(place: Path, known: Secrets) -> World:
    return World(place, known)


async def test_a_run_with_all_kinds_of_logins_shows_no_secret(world: World, known: Secrets) -> None:
    with logged_at_debug() as lines:
        secret = known.add("coordinator", read_or_make_secret(world.zookeeper))
        with Background(EmbeddedCoordinator(world.zookeeper, secret=secret)) as server:
            write_address(world.zookeeper, server.value.connect_string)
            settings = world.settings()
            broker = TalkativeBroker(world.place / "broker", settings)
            broker.port = int(settings["listeners"].rpartition(":")[2])
            with broker:
                loop = asyncio.get_running_loop()
                loop.set_debug(True)
                loop.slow_callback_duration = SLOW_CALLBACK_S
                async with asyncio.timeout(3 * BOUND_S):
                    shown = await used(world, broker.bootstrap_servers)
                    shown["znodes"] = await znodes(world)
                shown["metrics page"] = await asyncio.to_thread(metrics_page, world)
                shown |= await asyncio.to_thread(commands, world, broker.bootstrap_servers)
            shown["log of the broker"] = broker.log_file.read_text(errors="replace")
    shown["logs of the clients"] = "\n".join(lines)

    assert "DEBUG" in shown["log of the broker"]
    assert "kazoo" in shown["logs of the clients"]
    assert "asyncio: Executing" in shown["logs of the clients"]
    assert {purpose: found for purpose, text in shown.items() if (found := known.found_in(text))} == {}


async def used(world: World, servers: str) -> dict[str, str]:
    """Log in by every way, rightly and wrongly; return errors and answers by their names."""
    shown: dict[str, str] = {}
    plain = world.client("PLAIN", world.password)
    async with Admin(servers, config_of(plain)) as admin:
        scram = world.known.new("scram")
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            await admin.users.set_password("anna", scram, mechanism)
        made = await admin.tokens.create()
        world.known.add("delegation token", made.password)
        shown["repr of a delegation token"] = repr(made)
        await admin.topics.create("letters", partitions=1, replication_factor=1)
        shown["DescribeConfigs"] = repr(await admin.configs.describe(BROKER, "1"))
        with pytest.raises(KafkaError) as refused:
            await admin.configs.alter(BROKER, "1", {"ssl.keystore.password": world.known.new("altered")})
        shown["refusal of a secret setting"] = repr(refused.value)
    ways = {
        "PLAIN": plain,
        "SCRAM-SHA-256": world.client("SCRAM-SHA-256", scram),
        "SCRAM-SHA-512": world.client("SCRAM-SHA-512", scram),
        "OAUTHBEARER": world.client("OAUTHBEARER", world.token()),
        "delegation token": world.client("SCRAM-SHA-512", made.password, made.token_id)
        | {"sasl_token_auth": True},
    }
    for name, settings in ways.items():
        await round_trip(servers, settings, shown)
        wrong = world.known.new(f"wrong-{name.replace(' ', '-')}")
        changed: dict[str, Any] = {"sasl_password": wrong}
        if name == "OAUTHBEARER":
            changed = {"sasl_oauth_token_provider": partial(str, wrong)}
        with pytest.raises(ClientError) as failed:
            await Producer(servers, **(settings | changed)).start()
        shown[f"refusal of {name}"] = f"{failed.value!r} {failed.value.__cause__!r}"
    return shown


def config_of(settings: Mapping[str, Any]) -> ClientConfig:
    return ClientConfig(security=SecurityConfig(**settings))


async def round_trip(servers: str, settings: dict[str, Any], shown: dict[str, str]) -> None:
    """Write and read by every kind of client, and keep the representations of their configurations."""
    async with Producer(servers, **settings) as producer:
        await producer.send_and_wait("letters", b"hello")
        shown["repr of a producer"] = repr(producer) + repr(vars(producer))
    reading = settings | {"auto_offset_reset": "earliest"}
    async with Consumer("letters", bootstrap_servers=servers, group_id="a", **reading) as consumer:
        assert (await anext(consumer)).value == b"hello"
        shown["repr of a consumer"] = repr(consumer) + repr(vars(consumer))
    app, handled = App("letters-app", servers, **reading), asyncio.Event()

    @app.handle("letters")
    async def take(record: ConsumerRecord) -> None:
        handled.set()

    async with app:
        await handled.wait()
    await asyncio.to_thread(send_in_a_thread, servers, settings)


def send_in_a_thread(servers: str, settings: dict[str, Any]) -> None:
    with SyncProducer(bootstrap_servers=servers, **settings) as producer:
        producer.send_and_wait("letters", b"hello")


async def znodes(world: World) -> str:
    """Return all znodes with their content, read with the secret of the coordinator."""
    access = access_to(world.zookeeper)
    found: list[str] = [repr(access)]
    async with KazooSession(access.connect_string, credentials=access.credentials) as session:
        waiting = ["/"]
        while waiting:
            path = waiting.pop()
            with suppress(NoNode):
                data, _ = await session.get(path)
                found.append(f"{path} {data.decode(errors='replace')}")
                waiting += [f"{path.rstrip('/')}/{name}" for name in await session.children(path)]
    return "\n".join(found)


def metrics_page(world: World) -> str:
    request = urllib.request.Request(
        f"https://127.0.0.1:{world.metrics_port}/metrics",
        headers={"Authorization": f"Bearer {world.metrics_token}"},
    )
    context = ssl.create_default_context(cafile=world.cafile)
    with urllib.request.urlopen(request, timeout=BOUND_S, context=context) as answer:
        return str(answer.read(), "utf-8")


def commands(world: World, servers: str) -> dict[str, str]:
    """Return the outputs of commands that show settings, users and tokens."""
    properties = world.place / "client.properties"
    lines = {
        "security.protocol": "SASL_SSL",
        "ssl.cafile": world.cafile,
        "ssl.certfile": world.certfile,
        "ssl.keyfile": world.keyfile,
        "ssl.key.password": world.key_password,
        "sasl.mechanism": "PLAIN",
        "sasl.username": "anna",
        "sasl.password": world.password,
    }
    properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    shown: dict[str, str] = {}
    for call in (
        ("config", "describe", "--broker", "1"),
        ("user", "list"),
        ("token", "list"),
        ("acl", "list"),
        ("topic", "list"),
    ):
        where = ("-b", servers, "--command-config", str(properties))
        done = CliRunner().invoke(main, [*call, *where])
        assert done.exit_code == 0, done.output
        shown[f"ottla {' '.join(call)}"] = done.output
    return shown


def test_no_configuration_and_no_mechanism_shows_a_secret(world: World, known: Secrets) -> None:
    secret = known.new("shown")
    world.zookeeper.mkdir(exist_ok=True, mode=0o700)
    write_address(world.zookeeper, "127.0.0.1:1")
    read_or_make_secret(world.zookeeper)
    module = LOGIN_MODULES["PLAIN"]
    jaas = f'{module} required username="x" password="{secret}" user_x="{secret}";'
    broker = load_broker_config(flags=world.settings() | {"ssl.key.password": secret}).config
    credential = ScramCredential.from_password(SCRAM_HASHES["SCRAM-SHA-256"], secret, b"salt")
    known.credential("credential", credential)
    client = config_of(world.client("PLAIN", secret))
    source = TokenSource("https://127.0.0.1:1", "id", secret)
    shown = [
        broker, broker.of_listener("SASL_SSL"), read_key_store(broker), read_trust_store(broker),
        parse_jaas(jaas), PlainUsers(parse_jaas(jaas)[0]), credential, client,
        ProducerConfig.of(**world.client("PLAIN", secret)),
        ConsumerConfig.of(**world.client("PLAIN", secret)),
        Plain("x", secret), OAuthBearer(secret), Scram("SCRAM-SHA-256", "x", secret, "nonce"),
        source, Token(secret, 0, 0), Certificate("a", "b", secret),
        PageAccess(None, secret, secret),
        ZookeeperConsumerConfig.from_properties(
            {"group.id": "g", "zookeeper.connect": "127.0.0.1:1", "zookeeper.ssl.keystore.password": secret}
        ),
        client_security_from(
            {
                "zookeeper.sasl.jaas.file": str(world.zookeeper / "jaas.conf"),
                "zookeeper.ssl.client.enable": "true",
                "zookeeper.ssl.keystore.location": str(world.both),
                "zookeeper.ssl.keystore.password": world.key_password,
            }
        ),
        SaslAuthenticateRequest(auth_bytes=secret.encode()),
        ScramCredentialUpsertion(salted_password=secret.encode()),
        prepare(world.place / "secured", []),
    ]  # fmt: skip

    assert {type(thing).__name__: found for thing in shown if (found := known.found_in(repr(thing)))} == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"sasl_jaas_config": "{0}"},
        {"sasl_password": ["{0}"]},
        {"sasl_password": "{0}", "sasl_mechanism": "NONE", "security_protocol": "SASL_SSL"},
        {"sasl_password": "{0}"},
        {"ssl_key_password": "{0}"},
        {"sasl_jaas_config": 'x.PlainLoginModule required username="u" password="{0}'},
        {"sasl_passwort": "{0}"},
    ],
)
def test_no_error_of_settings_shows_a_secret(wrong: dict[str, Any], known: Secrets) -> None:
    secret = known.new("setting")
    given: dict[str, Any] = {
        key: value.replace("{0}", secret) if isinstance(value, str) else [secret]
        for key, value in wrong.items()
    }
    dotted = {key.replace("_", "."): str(value) for key, value in given.items()}

    for make in (partial(ProducerConfig.of, **given), partial(from_properties, ClientConfig, dotted)):
        with pytest.raises(SettingError) as refused:
            make()
        assert known.found_in(f"{refused.value!r} {refused.value.__cause__!r}") == []


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("sasl.jaas.config", 'x required password="{0}";'),
        ("listener.name.sasl_ssl.plain.sasl.jaas.config", 'PlainLoginModule required user_x="{0}'),
        ("ssl.keystore.password", "{0}"),
        ("ssl.keystore.key", "{0}"),
        ("ssl.truststore.certificates", "{0}"),
        ("delegation.token.secret.key", "{0}" * 2_000),
    ],
)
def test_no_refused_start_shows_a_secret(key: str, text: str, known: Secrets, tmp_path: Path) -> None:
    secret = known.new("start")
    settings = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_SSL",
        "ssl.keystore.type": "PEM",
        "sasl.enabled.mechanisms": "PLAIN",
        key: text.replace("{0}", secret),
    }

    broker = BrokerProcess(tmp_path, settings)
    with pytest.raises(BrokerFailed) as refused:
        broker.start()

    assert known.found_in(f"{refused.value!r} {broker.log_file.read_text()}") == []
