"""Ordered parallel processing of topics: one consumer, many keys in flight, each key in order.

Everything that a program needs can be imported from here; `ottla.streams.testing` is for tests. Names are
imported when they are asked for, so that `import ottla.streams` is cheap.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.consumer import ConsumerRecord
    from ottla.streams.app import App
    from ottla.streams.assembly import AppError
    from ottla.streams.config import StreamsConfig
    from ottla.streams.dedupe import (
        Dedupe,
        DedupeError,
        DedupeStatistics,
        DedupeStore,
        Identity,
        MemoryStore,
        MessageIds,
        MissingIdentity,
        RedisStore,
        SqliteStore,
        SqlMarks,
        StoreUnavailable,
        TopicStore,
        WindowLimits,
        by_function,
        by_header,
        by_key,
        by_message_id,
    )
    from ottla.streams.errors import (
        ContextMisused,
        HandlerCancelled,
        HandlerFailed,
        HandlerTimedOut,
        InvalidHandler,
        OutputFailed,
        RecordError,
        RecordUndecodable,
        StateUndecodable,
        StreamsError,
        TopologyError,
        WorkerProcessDied,
    )
    from ottla.streams.exactly_once.outcome import OutputRejected, TransactionsFenced
    from ottla.streams.failures.retry_policy import RetryPolicy
    from ottla.streams.handlers.context import Context
    from ottla.streams.language.declarations import GlobalTable, Table
    from ottla.streams.language.serdes import Serde, named_serde
    from ottla.streams.language.stream import Stream, WindowedStream
    from ottla.streams.language.windows import WindowValue, tumbling
    from ottla.streams.operating.health import HealthLimits
    from ottla.streams.operating.status_server import StatusLogin
    from ottla.streams.processing.processor import Processor
    from ottla.streams.processing.queue import QueueProcessor
    from ottla.streams.seams import (
        DeadLetter,
        FailurePolicy,
        Handler,
        Observer,
        Retry,
        Skip,
        Stop,
        Verdict,
        Work,
    )

__all__ = [
    "App",
    "AppError",
    "ConsumerRecord",
    "Context",
    "ContextMisused",
    "DeadLetter",
    "Dedupe",
    "DedupeError",
    "DedupeStatistics",
    "DedupeStore",
    "FailurePolicy",
    "GlobalTable",
    "Handler",
    "HandlerCancelled",
    "HandlerFailed",
    "HandlerTimedOut",
    "HealthLimits",
    "Identity",
    "InvalidHandler",
    "MemoryStore",
    "MessageIds",
    "MissingIdentity",
    "Observer",
    "OutputFailed",
    "OutputRejected",
    "Processor",
    "QueueProcessor",
    "RecordError",
    "RecordUndecodable",
    "RedisStore",
    "Retry",
    "RetryPolicy",
    "Serde",
    "Skip",
    "SqlMarks",
    "SqliteStore",
    "StateUndecodable",
    "StatusLogin",
    "Stop",
    "StoreUnavailable",
    "Stream",
    "StreamsConfig",
    "StreamsError",
    "Table",
    "TopicStore",
    "TopologyError",
    "TransactionsFenced",
    "Verdict",
    "WindowLimits",
    "WindowValue",
    "WindowedStream",
    "Work",
    "WorkerProcessDied",
    "by_function",
    "by_header",
    "by_key",
    "by_message_id",
    "named_serde",
    "tumbling",
]

__version__ = "0.1.0"

_MODULES = {
    "ottla.consumer": "ConsumerRecord",
    "ottla.streams.app": "App",
    "ottla.streams.config": "StreamsConfig",
    "ottla.streams.assembly": "AppError",
    "ottla.streams.dedupe": "Dedupe DedupeError DedupeStatistics DedupeStore Identity MemoryStore MessageIds "
    "MissingIdentity RedisStore SqlMarks SqliteStore StoreUnavailable TopicStore WindowLimits "
    "by_function by_header by_key by_message_id",
    "ottla.streams.errors": "ContextMisused HandlerCancelled HandlerFailed HandlerTimedOut InvalidHandler "
    "OutputFailed RecordError RecordUndecodable StateUndecodable StreamsError TopologyError "
    "WorkerProcessDied",
    "ottla.streams.exactly_once.outcome": "OutputRejected TransactionsFenced",
    "ottla.streams.failures.retry_policy": "RetryPolicy",
    "ottla.streams.handlers.context": "Context",
    "ottla.streams.language.declarations": "GlobalTable Table",
    "ottla.streams.language.serdes": "Serde named_serde",
    "ottla.streams.language.stream": "Stream WindowedStream",
    "ottla.streams.language.windows": "WindowValue tumbling",
    "ottla.streams.operating.health": "HealthLimits",
    "ottla.streams.operating.status_server": "StatusLogin",
    "ottla.streams.processing.processor": "Processor",
    "ottla.streams.processing.queue": "QueueProcessor",
    "ottla.streams.seams": "DeadLetter FailurePolicy Handler Observer Retry Skip Stop Verdict Work",
}
"""The public names of each module."""
_LATE = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
