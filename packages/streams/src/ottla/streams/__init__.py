"""Ordered parallel processing of topics: one consumer, many keys in flight, each key in order.

`StreamsConfig` has the settings, `seams` the protocols between the parts. Names are imported when they are
asked for, so that `import ottla.streams` is cheap.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.streams.app import App
    from ottla.streams.config import StreamsConfig
    from ottla.streams.declared_handlers import AppError
    from ottla.streams.errors import StreamsError
    from ottla.streams.handlers.context import Context
    from ottla.streams.language.errors import TopologyError
    from ottla.streams.language.serdes import Serde, named_serde
    from ottla.streams.language.windows import WindowValue, tumbling
    from ottla.streams.operating.health import HealthLimits
    from ottla.streams.processing.processor import Processor

__all__ = [
    "App",
    "AppError",
    "Context",
    "HealthLimits",
    "Processor",
    "Serde",
    "StreamsConfig",
    "StreamsError",
    "TopologyError",
    "WindowValue",
    "named_serde",
    "tumbling",
]

__version__ = "0.1.0"

_LATE = {
    "App": "ottla.streams.app",
    "AppError": "ottla.streams.declared_handlers",
    "Context": "ottla.streams.handlers.context",
    "HealthLimits": "ottla.streams.operating.health",
    "StreamsConfig": "ottla.streams.config",
    "Processor": "ottla.streams.processing.processor",
    "StreamsError": "ottla.streams.errors",
    "Serde": "ottla.streams.language.serdes",
    "TopologyError": "ottla.streams.language.errors",
    "WindowValue": "ottla.streams.language.windows",
    "named_serde": "ottla.streams.language.serdes",
    "tumbling": "ottla.streams.language.windows",
}
"""The module of each public name."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)
