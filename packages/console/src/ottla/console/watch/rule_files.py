"""Rules of alerts, where alerts are sent, and the TOML file that both stand in. Pure but for reading it.

webhook = { env = "ALERT_HOOK" }

[mail]
server = "smtp.example.com:587"
username = "alerts"
password = { file = "smtp-password" }
sender = "kafka@example.com"
recipients = ["night@example.com"]

[[rule]]
name = "billing lags"
kind = "lag"
match = "billing*"
above = 10000
for_minutes = 5
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from email.errors import MessageError
from email.headerregistry import Address as MailAddress
from pathlib import Path
from typing import Any, Final, Literal, cast

from ottla.client.config import Address, parse_bootstrap_servers
from ottla.client.config_definition import SettingError
from ottla.client.page_server import is_loopback
from ottla.client.profiles import ProfileError, SecretSource

KINDS: Final = (
    "lag", "time_lag", "lag_growing", "no_members", "silent_topic", "under_replicated", "offline",
    "no_leader", "unclean_election", "broker_away", "disk", "certificate", "unreachable",
)  # fmt: skip
GROUP_KINDS: Final = ("lag", "time_lag", "lag_growing", "no_members")
"""The kinds whose subjects are groups."""
CERTIFICATE_DAYS: Final = 30.0

Security = Literal["starttls", "tls", "none"]
Format = Literal["json", "msgpack"]
_SOURCES: Final = ("env", "file", "command", "keyring")
_SECURITIES: Final = ("starttls", "tls", "none")
_FORMATS: Final = ("json", "msgpack")
_HOW: Final = '{ env = "NAME" }, { file = "PATH" }, { command = "COMMAND" } or { keyring = "SERVICE/USER" }'


class RuleError(SettingError):
    """A file of rules cannot be read; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. It raises an alert once it has held for `for_minutes`, and clears it when it does not hold.

    `match` and `cluster` are patterns of names with `*`. `above` is a number of records for lag, of seconds
    for time lag, a percentage for disks, a number of partitions for the others. `days` is for certificates:
    the rule holds when fewer are left.
    """

    name: str
    kind: str
    match: str = "*"
    cluster: str = "*"
    above: float = 0.0
    for_minutes: float = 0.0
    silent: bool = False
    """Whether its alerts are kept and shown, and not sent."""
    days: float = CERTIFICATE_DAYS


@dataclass(frozen=True, slots=True)
class Mail:
    """A server of mail, the login at it, and whose mail it is. Secrets are read when mail is first sent."""

    server: Address
    sender: str
    recipients: tuple[str, ...]
    security: Security = "starttls"
    username: str | None = None
    password: SecretSource | None = None
    cafile: Path | None = None
    """The authorities to trust; those of the system where it is None."""
    folder: Path = field(default_factory=Path)
    """The folder that the file of a secret is relative to."""


@dataclass(frozen=True, slots=True)
class AlertTopic:
    """A topic that alerts are written to, of a profile's cluster or of brokers that need no login."""

    name: str
    profile: str | None = None
    bootstrap_servers: str | None = None
    format: Format = "json"


@dataclass(frozen=True, slots=True)
class Targets:
    """Where alerts are sent."""

    webhook: str | SecretSource | None = field(default=None, repr=False)
    """An address; its path may hold a secret."""
    mail: Mail | None = None
    topic: AlertTopic | None = None
    folder: Path = field(default_factory=Path)


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Return the rules of a file. Raises RuleError."""
    given = _table(path).get("rule", [])
    if not isinstance(given, list):
        raise RuleError(
            f"{path} must consist of [[rule]] tables, with webhook, [mail] and [topic] above them"
        )
    rules = tuple(_rule(path, number, entry) for number, entry in enumerate(given, 1))
    names = [rule.name for rule in rules]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RuleError(f"{path}: two rules are named {twice[0]!r}")
    return rules


def read_targets(path: Path) -> Targets:
    """Return where the alerts of a file are sent; no secret is read yet. Raises RuleError."""
    table = _table(path)
    return Targets(
        _webhook(path, table.get("webhook")),
        _mail(path, table["mail"]) if "mail" in table else None,
        _topic(path, table["topic"]) if "topic" in table else None,
        path.parent,
    )


def _table(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RuleError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except tomllib.TOMLDecodeError as error:
        raise RuleError(f"{path} is not TOML: {error}") from None
    if unknown := sorted(set(table) - {"rule", "webhook", "mail", "topic"}):
        raise RuleError(
            f"{path} must consist of [[rule]] tables, with webhook, [mail] and [topic] above them, "
            f"not {unknown[0]!r}"
        )
    return table


_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "name": str, "kind": str, "match": str, "cluster": str, "above": (int, float),
    "for_minutes": (int, float), "silent": bool, "days": (int, float),
}  # fmt: skip


def _rule(path: Path, number: int, entry: Any) -> Rule:
    where = f"{path}, rule {number}"
    if not isinstance(entry, dict):
        raise RuleError(f"{where} must be a table, [[rule]]")
    known = [known_field.name for known_field in fields(Rule)]
    for key, value in entry.items():
        if key not in known:
            raise RuleError(f"{where} has no key {key!r}: it has {', '.join(known)}")
        if not isinstance(value, _TYPES[key]) or (isinstance(value, bool) and key != "silent"):
            raise RuleError(f"{where}: {key} = {value!r} is of the wrong type")
    if missing := [key for key in ("name", "kind") if not entry.get(key)]:
        raise RuleError(f"{where} has no {missing[0]}")
    if entry["kind"] not in KINDS:
        raise RuleError(f"{where}: {entry['kind']!r} is no kind: {', '.join(KINDS)}")
    if "days" in entry and entry["kind"] != "certificate":
        raise RuleError(f"{where}: days is for the kind certificate, not for {entry['kind']}")
    return Rule(**entry)


def _webhook(path: Path, given: Any) -> str | SecretSource | None:
    if isinstance(given, dict):
        return _secret(path, "webhook", given)
    if given is not None and not (isinstance(given, str) and given.startswith(("http://", "https://"))):
        raise RuleError(f"{path}: webhook must be an address, https://…, or for a secret one {_HOW}")
    return given


def _secret(path: Path, key: str, given: Any) -> SecretSource:
    if not isinstance(given, dict):
        raise RuleError(f"{path} holds {key} in clear: write {_HOW}")
    kind = next(iter(given), "")
    if len(given) != 1 or kind not in _SOURCES or not isinstance(given[kind], str):
        raise RuleError(f"{path}: {key} must be {_HOW}")
    return SecretSource(kind, given[kind])


def _texts(
    path: Path, name: str, given: Any, known: tuple[str, ...], needed: tuple[str, ...]
) -> dict[str, Any]:
    """Return a table that has text under its known keys, apart from secrets and lists."""
    if not isinstance(given, dict):
        raise RuleError(f"{path}: [{name}] must be a table")
    if unknown := sorted(set(given) - set(known)):
        raise RuleError(f"{path}: [{name}] has no key {unknown[0]!r}: it has {', '.join(known)}")
    if missing := [key for key in needed if not given.get(key)]:
        raise RuleError(f"{path}: [{name}] has no {missing[0]}")
    for key, value in given.items():
        if key not in ("password", "recipients") and not isinstance(value, str):
            raise RuleError(f"{path}: [{name}] {key} = {value!r} must be text")
    return given


def _mail(path: Path, entry: Any) -> Mail:
    known = ("server", "security", "username", "password", "sender", "recipients", "cafile")
    given = _texts(path, "mail", entry, known, ("server", "sender", "recipients"))
    security = _chosen(path, "mail", "security", given.get("security", "starttls"), _SECURITIES)
    recipients = given["recipients"]
    if not (isinstance(recipients, list) and all(isinstance(part, str) for part in recipients)):
        raise RuleError(f"{path}: [mail] recipients must be a list of addresses")
    for address in (given["sender"], *recipients):
        _check_mail_address(path, address)
    try:
        (server,) = parse_bootstrap_servers(given["server"])
    except ValueError:
        raise RuleError(f"{path}: [mail] server must be host:port, such as smtp.example.com:587") from None
    password = _secret(path, "password", given["password"]) if "password" in given else None
    if (password is None) != ("username" not in given):
        raise RuleError(f"{path}: [mail] username and password belong together")
    if password is not None and security == "none" and not is_loopback(server.host):
        raise RuleError(f"{path}: [mail] would send its password in clear: security must be starttls or tls")
    cafile = path.parent / Path(given["cafile"]).expanduser() if "cafile" in given else None
    return Mail(
        server, given["sender"], tuple(recipients), cast("Security", security), given.get("username"),
        password, cafile, path.parent,
    )  # fmt: skip


def _check_mail_address(path: Path, address: str) -> None:
    try:
        is_good = bool(MailAddress(addr_spec=address).domain)
    except (ValueError, IndexError, MessageError):
        is_good = False
    if not is_good or not address.isprintable():
        raise RuleError(f"{path}: [mail] {address!r} is no address such as night@example.com")


def _topic(path: Path, entry: Any) -> AlertTopic:
    known = ("name", "profile", "bootstrap_servers", "format")
    given = _texts(path, "topic", entry, known, ("name",))
    if ("profile" in given) == ("bootstrap_servers" in given):
        raise RuleError(f"{path}: [topic] needs profile or bootstrap_servers, and not both")
    chosen = _chosen(path, "topic", "format", given.get("format", "json"), _FORMATS)
    return AlertTopic(
        given["name"], given.get("profile"), given.get("bootstrap_servers"), cast("Format", chosen)
    )


def _chosen(path: Path, table: str, key: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise RuleError(f"{path}: [{table}] {key} = {value!r} must be {', '.join(choices)}")
    return value


def secret_of(source: str | SecretSource, folder: Path) -> str:
    """Return a secret, or the text that needs none. Raises RuleError."""
    if isinstance(source, str):
        return source
    try:
        return source.read(folder)
    except ProfileError as error:
        raise RuleError(str(error)) from None
