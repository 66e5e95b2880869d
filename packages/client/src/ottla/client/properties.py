"""Client configuration from properties files, under Kafka's dotted names."""

from __future__ import annotations

import dataclasses
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


# Annotations as they are written; what is not here (contexts, callbacks, mappings) no file can hold.
_KINDS: dict[str, type[Any]] = {
    "int": int,
    "bool": bool,
    "str": str,
    "str | None": str,
    "SecurityProtocol": str,
}


def _fields(cls: type[Any]) -> dict[str, type[Any]]:
    """Map the fields a file can set to what their text becomes."""
    annotations = {field.name: str(field.type) for field in dataclasses.fields(cls)}
    return {name: _KINDS[kind] for name, kind in annotations.items() if kind in _KINDS}


def _convert(key: str, text: str, kind: type[Any]) -> Any:
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
