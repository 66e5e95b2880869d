"""Client configuration from properties files, under Kafka's dotted names."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import Any

from ottla.client.config import ClientConfig
from ottla.client.security import SecurityConfig


def read_config(path: str | Path | None) -> ClientConfig:
    """Read a file; None gives the defaults. Raises ValueError naming the key that is unknown or wrong."""
    if path is None:
        return ClientConfig()
    return config_from(parse(Path(path).read_text(encoding="utf-8")))


def parse(text: str) -> dict[str, str]:
    """Split the lines of a properties file; comments start with # or !."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#!")
    return {key.strip(): value.strip() for key, _, value in pairs}


def config_from(properties: dict[str, str]) -> ClientConfig:
    """Make a configuration from dotted names."""
    client, security = _fields(ClientConfig), _fields(SecurityConfig)
    for_client: dict[str, Any] = {}
    for_security: dict[str, Any] = {}
    for key, text in properties.items():
        name = key.replace(".", "_")
        if name in client:
            for_client[name] = _convert(key, text, client[name])
        elif name in security:
            for_security[name] = _convert(key, text, security[name])
        elif name != "bootstrap_servers":
            known = ", ".join(sorted(each.replace("_", ".") for each in (*client, *security)))
            raise ValueError(f"{key} is not known; known are {known}")
    return ClientConfig(**for_client, security=SecurityConfig(**for_security))


def _fields(cls: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, vars(typing) | {"ssl": _NoSsl})
    plain = (int, bool, str, str | None)
    names = [field.name for field in dataclasses.fields(cls)]
    return {name: hints[name] for name in names if hints[name] in plain or _is_literal(hints[name])}


class _NoSsl:
    """Stands in for the ssl module where only annotations are read."""

    SSLContext = object


def _is_literal(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Literal


def _convert(key: str, text: str, kind: Any) -> Any:
    if kind is int:
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{key} must be a whole number, not {text!r}") from None
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{key} must be true or false, not {text!r}")
        return text.lower() == "true"
    return text
