"""Profiles: named settings of connections in one TOML file that holds no secret in clear.

    [production]
    bootstrap_servers = "kafka.example.com:9093"
    security_protocol = "SASL_SSL"
    sasl_mechanism = "SCRAM-SHA-512"
    sasl_username = "josef"
    sasl_password = { env = "KAFKA_PASSWORD" }

A secret says where it is: in an environment variable, in a file, in the output of a command, or in the
system's keyring. Names of files are relative to the folder of the TOML file.

Services beside the brokers have settings of their own, which clients pass over: `schema_registry_url`,
`connect_urls`, `metrics_urls` (the metrics pages of brokers), and with the same beginnings `..._username`,
`..._password`, `..._token`, `..._ssl_cafile`, `..._ssl_certfile`, `..._ssl_keyfile` and
`..._ssl_key_password`. `zookeeper` is where old clusters keep their znodes, and `zookeeper_properties` a file
with the settings of its clients.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ottla.client.config import ClientConfig
from ottla.client.config_definition import SettingError
from ottla.client.settings import aliases, from_properties, settings_of

PROFILES_VARIABLE: Final = "OTTLA_PROFILES"
_MISSPELLED: Final = 0.9
"""How near a variable is to the one that is meant. `OTTLA_BOOTSTRAP_SERVICE_HOST`, of Kubernetes, is not."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_SERVICE_KEY: Final = re.compile(
    r"(?:schema_registry|metrics|connect(?:_[\w-]+)?)"
    r"_(?:urls?|username|password|token|ssl_(?:cafile|certfile|keyfile|key_password))"
    r"|zookeeper(?:_properties)?"
)
_SERVICE_SECRETS: Final = ("_password", "_token")
_COMMAND_TIMEOUT_S: Final = 60
_SOURCES: Final = ("env", "file", "command", "keyring")
_HOW: Final = '{ env = "NAME" }, { file = "PATH" }, { command = "COMMAND" } or { keyring = "SERVICE/USER" }'


class ProfileError(SettingError):
    """A profile, its file or one of its secrets cannot be read; the message says what to change."""


@dataclass(frozen=True, slots=True)
class SecretSource:
    """Where a secret is: `kind` is env, file, command or keyring."""

    kind: str
    reference: str

    def read(self, folder: Path | None = None) -> str:
        """Return the secret, without the end of its last line. Raises ProfileError."""
        found = _READERS[self.kind](self.reference, folder or Path())
        if not found:
            raise ProfileError(f"{self} holds an empty secret")
        return found

    def __str__(self) -> str:
        return f"{self.kind} {self.reference!r}"


def _of_environment(name: str, _: Path) -> str:
    if (found := os.environ.get(name)) is None:
        raise ProfileError(f"the environment variable {name} is not set, and a secret is to be in it")
    return found


def _of_file(name: str, folder: Path) -> str:
    path = folder / _expanded(name)
    try:
        return _without_line_end(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"the secret in {path} cannot be read: {_reason(error)}") from None


def _of_command(command: str, _: Path) -> str:
    try:
        done = subprocess.run(
            command, shell=True, stdout=subprocess.PIPE, check=False, timeout=_COMMAND_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise ProfileError(f"the command {command!r} gave no secret in {_COMMAND_TIMEOUT_S} s") from None
    if done.returncode:
        raise ProfileError(f"the command {command!r} for a secret ended with {done.returncode}")
    try:
        text = done.stdout.decode()
    except UnicodeDecodeError:
        text = None  # the error itself would carry the bytes
    if text is None:
        raise ProfileError(f"the command {command!r} for a secret printed no text")
    return _without_line_end(text)


def _of_keyring(reference: str, _: Path) -> str:
    service, slash, user = reference.rpartition("/")
    if not (service and slash and user):
        raise ProfileError(f"{reference!r} must be SERVICE/USER, an entry of the keyring")
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        raise ProfileError(
            "secrets in the keyring need `python -m pip install ottla-client[keyring]`"
        ) from None
    try:
        found: str | None = keyring.get_password(service, user)
    except KeyringError as error:
        raise ProfileError(f"the keyring cannot be read: {_reason(error)}") from None
    if found is None:
        raise ProfileError(f"the keyring has no {reference}: `keyring set {service} {user}` sets it")
    return found


_READERS: Final = {
    "env": _of_environment,
    "file": _of_file,
    "command": _of_command,
    "keyring": _of_keyring,
}


def _without_line_end(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())


def profiles_path() -> Path:
    """Return the file of profiles: OTTLA_PROFILES, or `ottla/profiles.toml` in the user's configuration."""
    if given := os.environ.get(PROFILES_VARIABLE):
        return Path(given)
    configuration = os.environ.get("XDG_CONFIG_HOME") or _expanded("~") / ".config"
    return Path(configuration) / "ottla" / "profiles.toml"


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ProfileError(
            f"this user has no home directory: {PROFILES_VARIABLE} names the file of profiles"
            if path == "~"
            else f"{path}: there is no such home directory"
        ) from None


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile: its settings, secrets as their sources."""

    name: str
    path: Path
    settings: Mapping[str, str | int | float | bool | SecretSource]

    @property
    def servers(self) -> str | None:
        """The brokers, or None if the profile names none."""
        found = self.settings.get("bootstrap_servers", self.settings.get("bootstrap.servers"))
        return None if found is None else str(found)

    def resolved(self) -> dict[str, Any]:
        """Return the settings of clients with their secrets, under the names that the file has.

        Raises ProfileError.
        """
        return self._read(key for key in self.settings if not is_of_service(key))

    def services(self) -> dict[str, Any]:
        """Return the settings of services beside the brokers, with their secrets. Raises ProfileError."""
        found = self._read(filter(is_of_service, self.settings))
        return {_flat(key): value for key, value in found.items()}

    def _read(self, keys: Iterable[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key in keys:
            value = self.settings[key]
            if isinstance(value, SecretSource):
                try:
                    found[key] = value.read(self.path.parent)
                except ProfileError as error:
                    raise ProfileError(f"profile {self.name!r}, {key}: {error}") from None
            else:
                found[key] = self._with_folder(key, value)
        return found

    def config(self) -> ClientConfig:
        """Return the settings as a config. Raises SettingError."""
        return self._checked(self.resolved())

    def check(self) -> None:
        """Check all settings but the secrets, which are not read. Raises SettingError."""
        self._checked(self.without_secrets())

    def without_secrets(self) -> dict[str, Any]:
        """Return the settings with something in place of each secret, for checks that must not read them."""
        return {
            key: _stand_in(key) if isinstance(value, SecretSource) else self._with_folder(key, value)
            for key, value in self.settings.items()
            if not is_of_service(key)
        }

    def _checked(self, settings: Mapping[str, Any]) -> ClientConfig:
        try:
            return from_properties(ClientConfig, settings)
        except SettingError as error:
            raise ProfileError(f"profile {self.name!r} of {self.path}: {error}") from None

    def _with_folder(self, key: str, value: Any) -> Any:
        is_file = _flat(key).startswith("ssl_") and _flat(key).endswith(("file", "location"))
        is_file = is_file or (is_of_service(key) and _flat(key).endswith("file"))
        return str(self.path.parent / _expanded(value)) if is_file and value else value


def _stand_in(key: str) -> str:
    return 'Module required username="-" password="-";' if _flat(key) == "sasl_jaas_config" else "-"


def _flat(key: str) -> str:
    return key.replace(".", "_")


def profile_settings(name: str, path: Path | None = None) -> dict[str, Any]:
    """Return the settings of a profile for a program, secrets included: `Producer(**profile_settings("x"))`.

    Raises ProfileError.
    """
    found = read_profile(name, path)
    known, others = settings_of(ClientConfig), aliases(ClientConfig)
    settings = found.resolved()
    for key in settings:
        if _flat(key) not in known and _flat(key) not in others:
            found.check()  # names the nearest known setting
    return {_flat(key): value for key, value in settings.items()}


def read_profile(name: str, path: Path | None = None) -> Profile:
    """Return one profile. Raises ProfileError, with the names that there are."""
    file = path or profiles_path()
    profiles = read_profiles(file)
    if name not in profiles:
        there = f"it has {', '.join(sorted(profiles))}" if profiles else "it has none"
        raise ProfileError(f"{file} has no profile {name!r}: {there}; `ottla profile add` adds one")
    return profiles[name]


def read_profiles(path: Path | None = None) -> dict[str, Profile]:
    """Return all profiles by name; none where there is no file. Raises ProfileError."""
    file = path or profiles_path()
    try:
        with file.open("rb") as opened:
            facts = os.fstat(opened.fileno())
            tables = tomllib.load(opened)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{file} cannot be read: {_reason(error)}") from None
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{file} is not TOML: {error}") from None
    if os.name == "posix" and stat.S_ISREG(facts.st_mode) and facts.st_mode & stat.S_IWOTH:
        raise ProfileError(f"everybody may write {file}: chmod o-w it, for its commands run as you")
    return {name: _profile(name, file, table) for name, table in tables.items()}


def _profile(name: str, path: Path, table: Any) -> Profile:
    if not isinstance(table, dict):
        raise ProfileError(f"{path}: {name!r} stands before the first [profile]")
    where = f"profile {name!r} of {path}"
    return Profile(name, path, {key: _value(key, value, where) for key, value in table.items()})


def _value(key: str, given: Any, where: str) -> str | int | float | bool | SecretSource:
    if isinstance(given, dict):
        kind = next(iter(given), "")
        if len(given) != 1 or kind not in _SOURCES or not isinstance(given[kind], str):
            raise ProfileError(f"{where}: {key} must be a value, or for a secret {_HOW}")
        return SecretSource(kind, given[kind])
    if is_secret(key):
        raise ProfileError(f"{where} holds {key} in clear: write {_HOW}")
    if isinstance(given, list):
        return ",".join(map(str, given))
    if not isinstance(given, str | int | float):
        raise ProfileError(f"{where}: {key} must be text or a number")
    return given


def is_secret(key: str) -> bool:
    """Return whether a setting, under any of its names, is a secret."""
    if is_of_service(key):
        return _flat(key).endswith(_SERVICE_SECRETS)
    known, alias = settings_of(ClientConfig), aliases(ClientConfig).get(_flat(key))
    field = _flat(key) if alias is None else alias.field
    return (alias is not None and alias.is_secret) or (
        field is not None and field in known and known[field].is_secret
    )


def is_of_service(key: str) -> bool:
    """Return whether a setting is of a service beside the brokers, and not of clients."""
    return _SERVICE_KEY.fullmatch(_flat(key)) is not None


def add_profile(profile: Profile, *, replace: bool = False) -> None:
    """Write a profile into its file, which only its owner may read. Raises ProfileError.

    Other profiles and their comments stay as they are.
    """
    if not _NAME.fullmatch(profile.name):
        raise ProfileError(f"{profile.name!r} must consist of letters, digits, - and _")
    there = read_profiles(profile.path)
    if profile.name in there and not replace:
        raise ProfileError(f"{profile.path} has a profile {profile.name!r}; --replace replaces it")
    profile.check()
    before = profile.path.read_text(encoding="utf-8") if profile.path.exists() else ""
    text = _without_table(before, profile.name).rstrip("\n")
    _replace_text(profile, before, (f"{text}\n\n" if text else "") + _table(profile))


def remove_profile(name: str, path: Path | None = None) -> None:
    """Remove a profile from its file. Raises ProfileError."""
    profile = read_profile(name, path)
    before = profile.path.read_text(encoding="utf-8")
    _replace_text(profile, before, _without_table(before, name))


def _replace_text(profile: Profile, before: str, after: str) -> None:
    if _others(after, profile.name) != _others(before, profile.name):
        raise ProfileError(
            f"{profile.path} has a form that only an editor can change: edit the profile there"
        )
    try:
        write_private(profile.path.resolve(), after)  # a link to a file of a repository stays one
    except OSError as error:
        raise ProfileError(f"{profile.path} cannot be written: {_reason(error)}") from None


def _others(text: str, name: str) -> dict[str, Any]:
    try:
        return {other: table for other, table in tomllib.loads(text).items() if other != name}
    except tomllib.TOMLDecodeError:
        return {}


def _without_table(text: str, name: str) -> str:
    """Return TOML without the lines of one table."""
    kept, skipping = list[str](), False
    for line in text.splitlines(keepends=True):
        if (header := re.match(r"\s*\[\s*(?:\"([^\"]*)\"|'([^']*)'|([\w-]+))", line)) is not None:
            skipping = next(part for part in header.groups() if part is not None) == name
        if not skipping:
            kept.append(line)
    return "".join(kept)


def _table(profile: Profile) -> str:
    lines = [f"[{profile.name}]"]
    for key, value in profile.settings.items():
        shown = f"{{ {value.kind} = {_quoted(value.reference)} }}" if isinstance(value, SecretSource) else ""
        lines.append(f"{_key(key)} = {shown or _scalar(value)}")
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if _NAME.fullmatch(key) else _quoted(key)


def _scalar(value: object) -> str:
    return json.dumps(value) if isinstance(value, bool | int | float) else _quoted(str(value))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_private(path: Path, text: str) -> None:
    """Replace a file whole, readable by its owner only: others may read it meanwhile. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    import tempfile

    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def misspelled_variable(environment: Mapping[str, str], known: Iterable[str]) -> str | None:
    """Return the error of a variable that is near a known one, as OTTLA_BOOTSTRAP_SERVERS is."""
    import difflib

    names = sorted(known)
    unknown = environment.keys() - {*names, PROFILES_VARIABLE}
    for name in sorted(name for name in unknown if name.startswith("OTTLA_")):
        if near := difflib.get_close_matches(name, names, 1, _MISSPELLED):
            return f"{name} is not a variable of Ottla; did you mean {near[0]}?"
    return None
