"""Dedupe: records that were handled are not handled again, by key, header, message id or a function.

`Dedupe` guards a handler with one of the stores: `MemoryStore`, `SqliteStore`, `RedisStore` or `TopicStore`.
`SqlMarks` commits marks together with the effect of a handler. `MessageIds` stamps records in a producer.
Names are imported when they are asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.streams.dedupe.errors import (
        DedupeError,
        DedupeMisconfigured,
        IdentityFailed,
        MissingIdentity,
        StoreUnavailable,
    )
    from ottla.streams.dedupe.guard import Dedupe, DedupeStatistics
    from ottla.streams.dedupe.identity import (
        Identity,
        MessageIds,
        by_function,
        by_header,
        by_key,
        by_message_id,
    )
    from ottla.streams.dedupe.sql_marks import SqlMarks
    from ottla.streams.dedupe.store import Claim, DedupeStore, MemoryStore, Scope
    from ottla.streams.dedupe.stores.redis import RedisStore
    from ottla.streams.dedupe.stores.sqlite import SqliteStore
    from ottla.streams.dedupe.stores.topic import TopicStore
    from ottla.streams.dedupe.window import WindowLimits
    from ottla.streams.dedupe.wrapping import Guard

__all__ = [
    "Claim",
    "Dedupe",
    "DedupeError",
    "DedupeMisconfigured",
    "DedupeStatistics",
    "DedupeStore",
    "Guard",
    "Identity",
    "IdentityFailed",
    "MemoryStore",
    "MessageIds",
    "MissingIdentity",
    "RedisStore",
    "Scope",
    "SqlMarks",
    "SqliteStore",
    "StoreUnavailable",
    "TopicStore",
    "WindowLimits",
    "by_function",
    "by_header",
    "by_key",
    "by_message_id",
]

_MODULES = {
    "errors": ("DedupeError", "DedupeMisconfigured", "IdentityFailed", "MissingIdentity", "StoreUnavailable"),
    "guard": ("Dedupe", "DedupeStatistics"),
    "identity": ("Identity", "MessageIds", "by_function", "by_header", "by_key", "by_message_id"),
    "sql_marks": ("SqlMarks",),
    "store": ("Claim", "DedupeStore", "MemoryStore", "Scope"),
    "stores.redis": ("RedisStore",),
    "stores.sqlite": ("SqliteStore",),
    "stores.topic": ("TopicStore",),
    "window": ("WindowLimits",),
    "wrapping": ("Guard",),
}
_LATE = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)
