"""The environment of a processor: clients of a cluster, the time of day, and chance.

Tests put others in their place, for code that runs in a context (`contextvars`) of its own: an in-memory log
and virtual time (`ottla.streams.testing`). Tasks measure time by the loop's clock, which a test replaces
together with the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context, ContextVar
from typing import Final, Protocol

from ottla.admin import Admin
from ottla.client import environment as machine
from ottla.client.config import ClientConfig
from ottla.consumer import Consumer, ConsumerConfig
from ottla.producer import Producer, ProducerConfig


class Environment(Protocol):
    """The clients, the clock and the chance of a processor."""

    def consumer(self, config: ConsumerConfig) -> Consumer:
        """Return a consumer that is not started."""

    def producer(self, config: ProducerConfig) -> Producer:
        """Return a producer that is not started."""

    def admin(self, config: ClientConfig) -> Admin:
        """Return an admin that is not entered."""

    def now_ms(self) -> int:
        """Return the time of day in milliseconds since 1970."""

    def chance(self) -> float:
        """Return a random number from 0 up to 1."""

    def waiting_outside(self) -> AbstractContextManager[None]:
        """Wait, within the block, for a thread or a process: virtual time stands still meanwhile."""


class _Machine:
    """The environment of programs: a cluster, and the machine's clock and chance."""

    def consumer(self, config: ConsumerConfig) -> Consumer:
        return Consumer(config=config)

    def producer(self, config: ProducerConfig) -> Producer:
        return Producer(config=config)

    def admin(self, config: ClientConfig) -> Admin:
        return Admin(config.bootstrap_servers, config)

    def now_ms(self) -> int:
        return machine.now_ms()

    def chance(self) -> float:
        return machine.chance()

    def waiting_outside(self) -> AbstractContextManager[None]:
        return nullcontext()


_MACHINE: Final = _Machine()
_environment: ContextVar[Environment] = ContextVar("ottla-streams-environment", default=_MACHINE)


def environment() -> Environment:
    """Return the environment of the running code."""
    return _environment.get()


def environment_of(context: Context) -> Environment:
    """Return the environment of code that runs in a context."""
    return context.get(_environment, _MACHINE)


@contextmanager
def using(surroundings: Environment) -> Iterator[None]:
    """Give another environment to the code of the block, and to the tasks that it starts."""
    token = _environment.set(surroundings)
    try:
        yield
    finally:
        _environment.reset(token)


def now_ms() -> int:
    """Return the time of day in milliseconds since 1970."""
    return _environment.get().now_ms()


def chance() -> float:
    """Return a random number from 0 up to 1."""
    return _environment.get().chance()
