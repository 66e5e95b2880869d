"""`--secure`: certificates, users and settings of a secured broker, made once beside its data.

The directory `secure` of a data directory has the certificate of a local authority, the broker's certificate
and key, and the passwords of two users: `admin`, for people, and `broker`, by which brokers log in at each
other. Both are super users. A later start reads it all; files with secrets are readable by their owner only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.cluster.client_entities import ClientEntities
from ottla.broker.cluster.scram_credentials import alter_credentials, read_credentials
from ottla.broker.config import BrokerConfig, load_broker_config
from ottla.broker.security.sasl.scram import SCRAM_HASHES, ScramCredential
from ottla.broker.server.secure_files import SecureFiles as SecureFiles
from ottla.broker.server.secure_files import (
    is_certificate_good,
    make_authority,
    make_certificate,
    own_hosts,
    read_secret,
    write,
)
from ottla.client.config_definition import ConfigError
from ottla.client.environment import nonce, now_ms, random_bytes

if TYPE_CHECKING:
    from ottla.client.profiles import Profile, SecretSource
    from ottla.zookeeper.session import Session

DIRECTORY: Final = "secure"
ADMIN: Final = "admin"
BROKER: Final = "broker"
MECHANISM: Final = "SCRAM-SHA-512"
LISTENER: Final = "SASL_SSL"

_LOCAL: Final = "local"
"""The name of the administrator's profile, unless it belongs to another broker."""
_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True, slots=True)
class SecureSetup:
    """A prepared directory `secure`. `is_new`: whether this start made its authority and its users."""

    files: SecureFiles
    is_new: bool
    is_announced: bool = True
    """Whether the broker introduces itself; one of a cluster does not."""

    def settings(self, listeners: str) -> dict[str, str]:
        """Return the broker's settings for its listeners, which are `SASL_SSL://host:port`."""
        files, prefix = self.files, f"listener.name.{LISTENER.lower()}"
        password = read_secret(files.password(BROKER))
        settings = {
            "listeners": listeners,
            "security.inter.broker.protocol": LISTENER,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "sasl.enabled.mechanisms": ",".join(SCRAM_HASHES),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(files.certificate),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(files.authority),
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": f"User:{ADMIN};User:{BROKER}",
            "delegation.token.secret.key": read_secret(files.token_key),
        }
        for mechanism in SCRAM_HASHES:
            login = f' username="{BROKER}" password="{password}"' if mechanism == MECHANISM else ""
            key = f"{prefix}.{mechanism.lower()}.sasl.jaas.config"
            settings[key] = f"{_MODULE} required{login};"
        return settings

    async def write_users(self, session: Session) -> None:
        """Create the users that are missing in ZooKeeper: before the first login, no client could."""
        for user in (ADMIN, BROKER):
            await write_user(session, user, read_secret(self.files.password(user)))

    def introduce(self, address: str) -> str:
        """Write a profile for the administrator; return how clients connect to the broker's address."""
        return introduction(self, address)

    def client_settings(self, user: str = ADMIN, password: str | None = None) -> dict[str, Any]:
        """Return the settings of Ottla's clients that log in as a user."""
        secret = read_secret(self.files.password(user)) if password is None else password
        return {
            "security_protocol": LISTENER,
            "ssl_cafile": str(self.files.authority),
            "sasl_mechanism": MECHANISM,
            "sasl_username": user,
            "sasl_password": secret,
        }


async def write_user(session: Session, user: str, password: str) -> None:
    """Give a user a password in ZooKeeper, unless it has one."""
    entities = ClientEntities(session)
    if MECHANISM not in await read_credentials(entities, user):
        credential = ScramCredential.from_password(SCRAM_HASHES[MECHANISM], password, random_bytes(24))
        await alter_credentials(entities, user, {MECHANISM: credential}, ())


def prepare(data_dir: Path, hosts: list[str]) -> SecureSetup:
    """Complete the directory `secure` of a data directory, and renew a certificate that ends soon.

    `hosts` are names and addresses that clients connect to, beside those of this machine. Raises OSError, and
    ConfigError for a directory of another user.
    """
    files = SecureFiles((data_dir / DIRECTORY).absolute())
    files.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _keep_out_others(files.directory)
    is_new = not files.authority_key.exists()
    if is_new:
        make_authority(files)
    for path in (files.password(ADMIN), files.password(BROKER), files.token_key):
        if not path.exists():
            write(path, f"{nonce()}\n")
    names = sorted({*own_hosts(), *hosts})
    if is_new or not is_certificate_good(files, names, now_ms()):
        make_certificate(files, names, now_ms())
    return SecureSetup(files, is_new)


def _keep_out_others(directory: Path) -> None:
    """Close a directory to other users; refuse one that belongs to another user. Raises ConfigError."""
    facts = directory.stat()
    if facts.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            "log.dirs", f"must not have {directory} of user {facts.st_uid}: chown it to the broker's user"
        )
    if facts.st_mode & 0o077 and facts.st_uid == os.geteuid():
        directory.chmod(0o700)


# ---- the command


def secured(
    properties: Mapping[str, str], flags: dict[str, str], of_cluster: Path | None
) -> tuple[SecureSetup, dict[str, str]]:
    """Return the setup of a broker, and the flags of its start.

    A cluster has made its own, in `of_cluster`, and written the settings into the properties. Otherwise the
    setup is made in the data directory. Raises ConfigError.
    """
    if of_cluster is not None:
        return SecureSetup(SecureFiles(of_cluster), is_new=False, is_announced=False), flags
    given = {**properties, **flags}
    places: dict[str, str] = {key: given[key] for key in ("log.dir", "log.dirs") if key in given}
    data_dirs = load_broker_config(flags=places).config.data_dirs
    return secured_flags(Path(data_dirs[0]), given, flags)


def secured_flags(
    data_dir: Path, given: Mapping[str, str], flags: Mapping[str, str]
) -> tuple[SecureSetup, dict[str, str]]:
    """Prepare `data_dir`; return that, and the flags of a start with the settings of a secured broker.

    `given` are all settings, those of a file included. Raises ConfigError for those that contradict.
    """
    if "zookeeper.connect" in given:
        raise ConfigError(
            "zookeeper.connect",
            "must not be set with --secure, which is for a broker with its own coordinator: secure ZooKeeper "
            "and each broker of a cluster by their keys",
        )
    listeners = given.get("listeners", f"{LISTENER}://127.0.0.1:9092")
    addresses = [listener.strip() for listener in listeners.split(",")]
    for address in addresses:
        if not address.startswith(f"{LISTENER}://"):
            raise ConfigError("listeners", f"must be {LISTENER}://host:port with --secure, not {address}")
    advertised = [text.strip() for text in given.get("advertised.listeners", "").split(",") if text.strip()]
    setup = prepare(data_dir, [host for host in map(_host, addresses + advertised) if not _is_any(host)])
    settings = setup.settings(listeners)
    if more := given.get("super.users"):
        settings["super.users"] += f";{more}"
    ours = ("listeners", "super.users")
    return setup, {**settings, **{key: flags[key] for key in flags if key not in ours}}


def _host(listener: str) -> str:
    return listener.partition("://")[2].rpartition(":")[0].strip("[]")


def _is_any(host: str) -> bool:
    return host in ("", "0.0.0.0", "::")


def introduction(setup: SecureSetup, address: str) -> str:
    """Write the administrator's settings for clients; return how to connect: at length when all is new.

    `address` is the broker's; of a cluster the addresses of all, separated by commas. A profile that cannot
    be written, in a container without a home for instance, is no reason not to serve.
    """
    from ottla.client.profiles import ProfileError

    servers = _servers(address)
    name, note = _LOCAL, _written_properties(setup, servers)
    try:
        name = write_profile(setup, address).name
    except ProfileError as error:
        note += f"No profile was written: {error}\n"
    if not setup.is_new:
        return note or f"Secured: connect with --profile {name}\n"
    from shlex import quote

    java, librdkafka = setup.files.java_properties, setup.files.librdkafka_properties
    return f"""
{note}The administrator is {ADMIN}; the password is in {setup.files.password(ADMIN)}
ottla        ottla topic list --profile {name}
Python       from ottla.client.profiles import profile_settings
             from ottla.producer import SyncProducer
             with SyncProducer(**profile_settings("{name}")) as producer:
                 producer.send("orders", b"hello").result()
Java         programs load {java}
             kafka-topics.sh --bootstrap-server {servers} --command-config {quote(str(java))} --list
librdkafka   programs set the lines of {librdkafka}
             kcat -F {quote(str(librdkafka))} -L
others       ottla user add NAME --profile {name}
             ottla acl add --principal User:NAME --producer --topic TOPIC --profile {name}
"""


def write_profile(setup: SecureSetup, address: str) -> Profile:
    """Write the administrator's profile for the broker at an address, and return it. Raises ProfileError."""
    from ottla.client.profiles import add_profile

    servers = _servers(address)
    profile = _profile_for(setup, servers, servers.partition(",")[0].rpartition(":")[2])
    add_profile(profile, replace=True)
    return profile


def _servers(address: str) -> str:
    host, _, port = address.partition(",")[0].rpartition(":")
    return f"localhost:{port}" if _is_any(host.strip("[]")) else address


def _written_properties(setup: SecureSetup, servers: str) -> str:
    """Write the settings of Java's clients and librdkafka; return a line if that is impossible."""
    from ottla.protocol.storage.properties import encode_properties

    files, password = setup.files, read_secret(setup.files.password(ADMIN))
    common = {"bootstrap.servers": servers, "security.protocol": LISTENER, "sasl.mechanism": MECHANISM}
    java = common | {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files.authority),
        "sasl.jaas.config": f'{_MODULE} required username="{ADMIN}" password="{password}";',
    }
    librdkafka = common | {
        "ssl.ca.location": str(files.authority),
        "sasl.username": ADMIN,
        "sasl.password": password,
    }
    lines = "".join(f"{key}={value}\n" for key, value in librdkafka.items())
    try:
        for path, text in (
            (files.java_properties, encode_properties(java).decode()),
            (files.librdkafka_properties, lines),
        ):
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                write(path, text)
    except OSError as error:
        return f"No properties were written into {files.directory}: {error.strerror}\n"
    return ""


def _profile_for(setup: SecureSetup, servers: str, port: str) -> Profile:
    """Return the profile `local`, or one named by the port where that belongs to another broker."""
    from ottla.client.profiles import Profile, SecretSource, profiles_path, read_profiles

    password = SecretSource("file", str(setup.files.password(ADMIN)))
    present = read_profiles().get(_LOCAL)
    is_free = present is None or _is_ours(present.settings.get("sasl_password"), password)
    settings = {"bootstrap_servers": servers, **setup.client_settings(password=""), "sasl_password": password}
    return Profile(_LOCAL if is_free else f"local-{port}", profiles_path(), settings)


def _is_ours(found: object, password: SecretSource) -> bool:
    """Return whether a profile's password is that of this broker, or of one whose directory is gone."""
    from ottla.client.profiles import SecretSource

    if not isinstance(found, SecretSource) or found.kind != "file":
        return False
    path = Path(found.reference)
    return found == password or (path.name == Path(password.reference).name and not path.exists())


def refuse_unsecured(config: BrokerConfig) -> None:
    """Refuse to serve everybody the data of a broker that was secured. Raises ConfigError."""
    for data_dir in map(Path, config.data_dirs):
        if SecureFiles(data_dir / DIRECTORY).authority_key.exists() and not config.authorizer_class_name:
            raise ConfigError(
                "authorizer.class.name",
                f"must be set: {data_dir} is of a secured broker, and would be open to everybody; start it "
                f"with --secure, or move {data_dir / DIRECTORY} away",
            )
