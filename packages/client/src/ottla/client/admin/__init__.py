"""The old name of `ottla.admin`, which the package ottla-admin brings."""

from __future__ import annotations

from typing import Any

from ottla.client.moved_modules import MovedModules

_MOVED = MovedModules({__name__: "ottla.admin"}, "ottla-admin")
_MOVED.install()


def __getattr__(name: str) -> Any:
    return _MOVED.attribute(__name__, name)
