"""Requests before the registry sees them: their names, their logins, and paths with encoded slashes.

A registry without a login serves programs of its machine. A page in a browser there could ask it too: a body
must have a type that no form can send, and the name that was asked must be one of this machine.
"""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ottla.client.config_definition import SettingError

SLASH: Final = "\ue000"
"""In place of a slash within a name: a path is divided before it is decoded."""
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_TYPES: Final = ("application/json", "application/vnd.schemaregistry", "application/octet-stream")


class Access:
    """Passes on to the registry the requests that it may answer."""

    def __init__(
        self, app: ASGIApp, *, users: Mapping[str, str] | None = None, only_local: bool = False
    ) -> None:
        """With `users`, names and passwords, each request needs a login; `only_local` wants local names."""
        self._app = app
        self._users = users
        self._only_local = only_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        path = scope["raw_path"].decode("latin-1").partition("?")[0]
        refusal = self._refusal(scope["method"], headers)
        if refusal is None and SLASH in unquote(path, errors="replace"):
            refusal = _refused(422, "a name has a letter that is reserved here")
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        decoded = unquote(path.replace("%2F", SLASH).replace("%2f", SLASH), errors="replace")
        decoded = decoded.rstrip("/") or "/"
        await self._app({**scope, "path": decoded}, receive, send)

    def _refusal(self, method: str, headers: Mapping[str, str]) -> Response | None:
        if self._only_local and _name(headers.get("host", "")) not in LOOPBACK:
            return _refused(421, "this registry serves its own machine only: ask localhost")
        if self._users is not None and not self._is_user(headers.get("authorization", "")):
            return _refused(401, "Unauthorized", {"www-authenticate": 'Basic realm="registry"'})
        if method in ("POST", "PUT") and not headers.get("content-type", "").lower().startswith(_TYPES):
            return _refused(415, f"a body must be of type {_TYPES[0]}")
        return None

    def _is_user(self, authorization: str) -> bool:
        assert self._users is not None
        scheme, _, text = authorization.partition(" ")
        try:
            name, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
        except ValueError:  # no base 64, or no UTF-8
            return False
        wanted = self._users.get(name)
        is_same = hmac.compare_digest(password.encode(), (wanted or "").encode())
        return scheme.lower() == "basic" and bool(colon) and wanted is not None and is_same


def _name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _refused(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    content = f'{{"error_code":{status},"message":"{text}"}}'
    return Response(content, status, headers, media_type="application/vnd.schemaregistry.v1+json")


def users_of(path: Path) -> dict[str, str]:
    """Return the names and passwords of a file with lines `NAME:PASSWORD`. Raises SettingError."""
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise SettingError(f"{path} has passwords, and others may read it: chmod 600 {path}")
    users = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, password = line.partition(":")
        if not (name and colon and password):
            raise SettingError(f"line {number} of {path} is not NAME:PASSWORD")
        users[name] = password
    if not users:
        raise SettingError(f"{path} names no user")
    return users
