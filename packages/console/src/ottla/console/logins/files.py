"""The TOML file of logins: users, tokens of programs, a provider of OpenID Connect, and masks.

[[user]]
name = "anna"
password = "$argon2id$…"            # `ottla console user add anna --role operator` writes it
role = "operator"
clusters = ["prod"]
topics = ["orders*"]

[[mask]]
topics = ["payments*"]
fields = ["card.number", "iban"]
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from ottla.client.config_definition import SettingError
from ottla.client.page_server import is_loopback
from ottla.client.profiles import SecretSource, write_private
from ottla.console.logins.access import ROLES, Grant, Role
from ottla.console.records.masking import MaskRule

T = TypeVar("T")

NAME: Final = re.compile(r"[^\s\x00-\x1f\x7f\"\\]{1,128}")
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_GRANT_KEYS: Final = ("role", "clusters", "topics", "groups")
_MOST_BYTES: Final = 4 << 20


class LoginsError(SettingError):
    """The file of logins cannot be used; the message is one line that says what to change."""


@dataclass(frozen=True, slots=True)
class User:
    """A person with a password, as its argon2 hash."""

    name: str
    password: str = field(repr=False)
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class Token:
    """A program, such as Prometheus, with a random token, as its SHA-256 in hexadecimal."""

    name: str
    sha256: str = field(repr=False)
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class ClaimedGrant:
    """The grant of everybody whose claim has a value."""

    value: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider of OpenID Connect: where it is, our name there, and the claims with name and roles."""

    issuer: str
    client_id: str
    client_secret: SecretSource | None
    label: str
    scope: str
    name_claim: str
    role_claim: str
    roles: tuple[ClaimedGrant, ...]

    def grants_of(self, values: Sequence[str]) -> tuple[Grant, ...]:
        """Return the grants of the values of a claim."""
        return tuple(claimed.grant for claimed in self.roles if claimed.value in values)


@dataclass(frozen=True, slots=True)
class Logins:
    """The content of the file."""

    users: Mapping[str, User] = field(default_factory=dict)
    tokens: tuple[Token, ...] = ()
    provider: Provider | None = None
    masks: tuple[MaskRule, ...] = ()


def default_path() -> Path:
    """Return the file that is read where none is named: `ottla/console.toml` in the user's configuration."""
    configuration = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(configuration) / "ottla" / "console.toml"


def read_logins(path: Path) -> Logins:
    """Return the logins of a file that only its owner may read. Raises LoginsError."""
    found = parse_logins(read_text(path), path)
    if found.provider is not None and find_spec("authlib") is None:
        raise LoginsError(f'{path}: [oidc] needs python -m pip install "ottla-console[oidc]"')
    return found


def read_text(path: Path) -> str:
    """Return the text of a file that only its owner may read. Raises LoginsError."""
    try:
        with path.open("rb") as file:
            mode, data = os.fstat(file.fileno()).st_mode, file.read(_MOST_BYTES)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise LoginsError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if mode & _OTHERS:
        raise LoginsError(f"{path} is open to other users (mode {stat.S_IMODE(mode):04o}): chmod 600 it")
    return text


def parse_logins(text: str, path: Path) -> Logins:
    """Return the logins of a text. Raises LoginsError."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LoginsError(f"{path} is not TOML: {error}") from None
    top = _Table(str(path), table)
    users = top.all("user", _user)
    tokens = top.all("token", _token)
    masks = top.all("mask", _mask)
    provider = top.one("oidc", _provider)
    top.end()
    for kind, names in (("user", [user.name for user in users]), ("token", [token.name for token in tokens])):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise LoginsError(f"{path}: two {kind}s are named {twice[0]!r}")
    return Logins({user.name: user for user in users}, tuple(tokens), provider, tuple(masks))


def _user(table: _Table) -> User:
    name = table.text("name", NAME)
    password = table.text("password", re.compile(r"\$argon2id\$\S+"))
    return User(name, password, _grants(table))


def _token(table: _Table) -> Token:
    return Token(table.text("name", NAME), table.text("sha256", re.compile("[0-9a-f]{64}")), _grants(table))


def _grants(table: _Table) -> tuple[Grant, ...]:
    """Return the grant in a table itself, and those of its `grants`."""
    own = [_grant(table)] if "role" in table else []
    found = (*own, *table.all("grants", _grant))
    return found or table.wrong("has no role: viewer, operator or administrator")


def _grant(table: _Table) -> Grant:
    topics = table.names("topics", ("*",))
    # Names of groups give away those of their topics: whoever sees some topics only is shown no others.
    groups = table.names("groups", ("*",) if "*" in topics else ())
    return Grant(_role(table, "role", None), table.names("clusters", ("*",)), topics, groups)


def _role(table: _Table, key: str, default: Role | None) -> Role:
    found = table.text(key, default="" if default is None else default.name.lower())
    return ROLES[found] if found in ROLES else table.wrong(f"has {key} = {found!r}: it is {', '.join(ROLES)}")


def _mask(table: _Table) -> MaskRule:
    found = MaskRule(
        table.names("fields", ()), table.names("headers", ()), table.flag("key"), table.flag("value"),
        table.names("topics", ("*",)), table.names("clusters", ("*",)),
        _role(table, "readers", Role.ADMINISTRATOR),
    )  # fmt: skip
    if not (found.fields or found.headers or found.key or found.value):
        table.wrong("masks nothing: it wants fields, headers, key = true or value = true")
    return found


def _provider(table: _Table) -> Provider:
    issuer = table.text("issuer", re.compile(r"https?://[^\s/?#]+[^\s?#]*"))
    host = issuer.partition("//")[2].partition("/")[0].rpartition("@")[2]
    if issuer.startswith("http://") and not is_loopback(host.partition(":")[0]):
        table.wrong("must have an issuer with https://")
    secret = table.secret("client_secret")
    roles = tuple(table.all("role", lambda claim: ClaimedGrant(claim.text("value"), _grant(claim))))
    if not roles:
        table.wrong("gives nobody a role: it wants [[oidc.role]] with value and role")
    return Provider(
        issuer.rstrip("/"), table.text("client_id"), secret,
        table.text("label", default="single sign-on"), table.text("scope", default="openid profile email"),
        table.text("name_claim", default="preferred_username"),
        table.text("role_claim", default="groups"), roles,
    )  # fmt: skip


class _Table:
    """A table of the file that knows where it stands and which of its keys were read."""

    def __init__(self, where: str, found: Any) -> None:
        self._where = where
        self._found: dict[str, Any] = found if isinstance(found, dict) else self.wrong("must be a table")
        self._read = set[str]()

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def wrong(self, why: str) -> NoReturn:
        """Raise LoginsError."""
        raise LoginsError(f"{self._where} {why}")

    def end(self) -> None:
        """Raise LoginsError if there are keys that were not read: a typing error must grant nothing."""
        if unknown := sorted(self._found.keys() - self._read):
            self.wrong(f"has no key {unknown[0]!r}: it has {', '.join(sorted(self._read))}")

    def text(self, key: str, form: re.Pattern[str] | None = None, default: str = "") -> str:
        """Return a text of a form, which is not empty unless there is a default."""
        found = self._get(key, default)
        if not isinstance(found, str) or not (found or default):
            self.wrong(f"needs {key}, a text" if key not in self._found else f"has {key} = {found!r}")
        if form is not None and not form.fullmatch(found):
            self.wrong(f"has a {key} that cannot be used" if key in _SECRET else f"has {key} = {found!r}")
        return found

    def names(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """Return a list of texts."""
        found = self._get(key, list(default))
        if not isinstance(found, list) or not all(isinstance(name, str) and name for name in found):
            self.wrong(f'has {key} = {found!r}: it is a list of texts, {key} = ["a*"]')
        return tuple(found)

    def flag(self, key: str) -> bool:
        """Return true or false."""
        found = self._get(key, False)
        return found if isinstance(found, bool) else self.wrong(f"has {key} = {found!r}: it is true or false")

    def secret(self, key: str) -> SecretSource | None:
        """Return where a secret is."""
        found = self._get(key, None)
        if found is None:
            return None
        kinds = ("env", "file", "command", "keyring")
        if isinstance(found, dict) and len(found) == 1:
            (kind, reference), *_ = found.items()
            if kind in kinds and isinstance(reference, str):
                return SecretSource(kind, reference)
        return self.wrong(f'must say where {key} is: {{ file = "PATH" }}, or env, command or keyring')

    def all(self, key: str, read: Callable[[_Table], T]) -> list[T]:
        """Return a value for each table of a list."""
        found = self._get(key, [])
        if not isinstance(found, list):
            self.wrong(f"must have [[{key}]] tables")
        return [self._inner(f"{key} {number}", entry, read) for number, entry in enumerate(found, 1)]

    def one(self, key: str, read: Callable[[_Table], T]) -> T | None:
        """Return the value of a table; None without one."""
        found = self._get(key, None)
        return None if found is None else self._inner(key, found, read)

    def _inner(self, name: str, found: Any, read: Callable[[_Table], T]) -> T:
        table = _Table(f"{self._where}, {name}:", found)
        result = read(table)
        table.end()
        return result

    def _get(self, key: str, default: object) -> Any:
        self._read.add(key)
        return self._found.get(key, default)


_SECRET: Final = ("password", "sha256")


# --- changes of the file


class LoginsDraft:
    """A file of logins that a command changes: its text, and that which stands in it."""

    def __init__(self, path: Path) -> None:
        """Raises LoginsError."""
        self.path = path
        self._before = read_text(path) if path.exists() else ""
        self.text = self._before
        self.logins = parse_logins(self.text, path)

    def write(self) -> None:
        """Write the text if it was changed, readable by the owner only. Raises LoginsError, OSError."""
        if self.text != self._before:
            parse_logins(self.text, self.path)
            write_private(self.path, self.text)


def with_user(text: str, user: User) -> str:
    """Return the text with one more user at its end."""
    return _with_block(text, "user", user.name, f'password = "{user.password}"', user.grants[0])


def with_token(text: str, token: Token) -> str:
    """Return the text with one more token at its end."""
    return _with_block(text, "token", token.name, f'sha256 = "{token.sha256}"', token.grants[0])


def _with_block(text: str, kind: str, name: str, secret: str, grant: Grant) -> str:
    lines = [f"[[{kind}]]", f'name = "{name}"', secret, f'role = "{grant.role.name.lower()}"']
    for key in _GRANT_KEYS[1:]:
        patterns: tuple[str, ...] = getattr(grant, key)
        if patterns != ("*",):
            lines.append(f"{key} = [{', '.join(map(_quoted, patterns))}]")
    before = text.rstrip("\n")
    return (before + "\n\n" if before else "") + "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def without(text: str, kind: str, name: str, path: Path) -> str:
    """Return the text without a user or a token. Raises LoginsError where it is not a block of its own."""
    blocks = re.split(rf"(?m)^(?=[ \t]*\[(?!\[{kind}\.))", text)
    result = "".join(block for block in blocks if not _is_block(block, kind, name))
    before = parse_logins(text, path)
    expected = replace(
        before,
        users={key: user for key, user in before.users.items() if (kind, key) != ("user", name)},
        tokens=tuple(token for token in before.tokens if (kind, token.name) != ("token", name)),
    )
    if parse_logins(result, path) != expected:
        raise LoginsError(f"{path}: {kind} {name!r} cannot be taken out by a command: edit the file")
    return result


def _is_block(block: str, kind: str, name: str) -> bool:
    try:
        found = tomllib.loads(block).get(kind)
    except tomllib.TOMLDecodeError:
        return False
    return isinstance(found, list) and [entry.get("name") for entry in found] == [name]
