"""Samples: the last answer to a question, asked again when it is old, and shown while a broker is silent."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from ottla.client.errors import (
    AuthenticationFailed,
    BadResponse,
    ClientError,
    ConnectFailed,
    ConnectionClosed,
    NoBrokerAvailable,
    RequestTimeout,
    UnsupportedByBroker,
)
from ottla.protocol.errors import KafkaError

_log = logging.getLogger(__name__)

T = TypeVar("T")

FRESH_S: Final = 3.0
"""How long an answer is shown without another look."""
PATIENCE_S: Final = 0.1
"""How long a page waits for a new answer while there is an older one; the next look at the page has it."""
SOON_S: Final = 30.0
"""An answer up to this age is shown at once where a new one takes longer than a page waits for it."""
CHANGED_S: Final = 5.0
"""How long it waits after a change from here: the older answer lacks that."""
ANSWER_S: Final = 15.0
"""How long a question may take."""
HIDDEN_REASON: Final = "the cluster did not answer as asked; whoever may see all of it sees why"
_NAMELESS: Final = (
    ConnectFailed, ConnectionClosed, NoBrokerAvailable, RequestTimeout, AuthenticationFailed, BadResponse,
    UnsupportedByBroker,
)  # fmt: skip
"""Errors whose words name brokers and requests, and never a topic or a group."""


def is_nameless(error: Exception) -> bool:
    """Whether the words of an error name no topic and no group."""
    return isinstance(error, _NAMELESS)


@dataclass(frozen=True, slots=True)
class Sample(Generic[T]):
    """An answer, how old it is, and the reason why there is no newer one ("" where there is none).

    `nameless` is that reason without names of topics and groups: the same answer is for all viewers.
    """

    value: T
    age_s: float
    failure: str = ""
    nameless: str = ""


class NoSample(Exception):
    """A question has no answer yet; the message says why, and `nameless` does without names."""

    def __init__(self, why: str, nameless: str = "") -> None:
        super().__init__(why)
        self.nameless = nameless or why


class Sampled(Generic[T]):
    """The answers to one question. However many ask at once, the cluster is asked once."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[T]],
        tasks: asyncio.TaskGroup,
        now_s: Callable[[], float],
        *,
        fresh_s: float = FRESH_S,
    ) -> None:
        """`tasks` runs the questions: the page that asks may be gone before the answer is there."""
        self._ask = ask
        self._tasks = tasks
        self._now_s = now_s
        self._fresh_s = fresh_s
        self._answer: tuple[T, float] | None = None
        self._failure = self._nameless = ""
        self._is_forgotten = False
        self._patience_s = PATIENCE_S
        self._took_s = 0.0
        self._asking: asyncio.Task[None] | None = None
        self.used_s = now_s()
        """When it was last read."""
        self.size_bytes = 0
        """About how much memory the answer takes."""

    @property
    def is_known(self) -> bool:
        """Whether there is an answer, or a reason why there is none."""
        return self._answer is not None or bool(self._failure)

    async def get(self) -> Sample[T]:
        """Return the newest answer that is there soon. Raises NoSample while there is none at all."""
        self.used_s = self._now_s()
        is_fresh = self._answer is not None and self._now_s() - self._answer[1] <= self._fresh_s
        if is_fresh and not self._is_forgotten:
            return self._sample()
        if self._asking is None:
            self._asking = self._tasks.create_task(self._renew())
        if (wait_s := self._wait_s()) > 0:
            await asyncio.wait([self._asking], timeout=wait_s)
        return self._sample()

    def _wait_s(self) -> float:
        """Return how long a page waits for the answer that is asked for."""
        if self._answer is None:
            return ANSWER_S + 1
        is_in_vain = self._took_s > self._patience_s and self._now_s() - self._answer[1] <= SOON_S
        return 0 if is_in_vain else self._patience_s

    def forget(self) -> None:
        """Ask again at the next look: the state was changed from here."""
        self._is_forgotten = True
        self._patience_s = CHANGED_S

    def cancel(self) -> None:
        """Give up the question that waits for an answer."""
        if self._asking is not None:
            self._asking.cancel()

    def _sample(self) -> Sample[T]:
        if self._answer is None:
            raise NoSample(self._failure or "there is no answer yet", self._nameless)
        value, at_s = self._answer
        return Sample(value, self._now_s() - at_s, self._failure, self._nameless)

    async def _renew(self) -> None:
        begun_s = self._now_s()
        try:
            self._is_forgotten = False
            async with asyncio.timeout(ANSWER_S):
                self._answer = await self._ask(), self._now_s()
            self._failure = self._nameless = ""
            self._patience_s = PATIENCE_S
            self.size_bytes = about_bytes(self._answer[0])
        except TimeoutError:
            self._failure = self._nameless = f"no answer within {ANSWER_S:g} s"
        except (NoSample, ClientError, KafkaError, OSError, ValueError) as error:
            self._failure = " ".join(str(error).split()) or type(error).__name__
            self._nameless = self._failure if is_nameless(error) else HIDDEN_REASON
        except Exception as error:  # of one question: the others of the group go on
            _log.exception("a question failed")
            self._failure = self._nameless = f"the console failed ({type(error).__name__}); its log says why"
        finally:
            self._asking = None
            self._took_s = self._now_s() - begun_s


# --- memory

_LOOKED_AT: Final = 12
"""Items of a collection that are measured; of the others as much is reckoned."""
_DEEPEST: Final = 8


def about_bytes(value: object) -> int:
    """Return about how much memory an answer takes, in a time that does not grow with it.

    Items of one collection are mostly alike, so some of them stand for all; texts are measured each.
    """
    return _about(value, _DEEPEST)


def _about(value: object, deep: int) -> int:
    own = sys.getsizeof(value, 0)
    if deep == 0 or value is None or isinstance(value, str | bytes | bytearray | int | float):
        return own
    if isinstance(value, Mapping):
        return own + _of_items(value.keys(), len(value), deep) + _of_items(value.values(), len(value), deep)
    if isinstance(value, Sequence | Set):
        return own + _of_items(value, len(value), deep)
    return own + sum(_about(part, deep - 1) for part in _parts(value))


def _of_items(items: Iterable[object], count: int, deep: int) -> int:
    first = next(iter(items), None)
    if isinstance(first, str | bytes):
        return sum(sys.getsizeof(item, 0) for item in items)
    looked_at = list(islice(items, 0, None, max(1, count // _LOOKED_AT)))
    total = sum(_about(item, deep - 1) for item in looked_at)
    return total * count // max(1, len(looked_at))


def _parts(value: Any) -> Iterator[object]:
    """Return the attributes of an object: of a dataclass, a structure of msgspec, or any other."""
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        yield from (getattr(value, name, None) for name in ((names,) if isinstance(names, str) else names))
    yield from getattr(value, "__dict__", {}).values()
