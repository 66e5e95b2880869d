"""Samples: the last answer to a question, asked again when it is old, and shown while a broker is silent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError

_log = logging.getLogger(__name__)

T = TypeVar("T")

FRESH_S: Final = 3.0
"""How long an answer is shown without another look."""
PATIENCE_S: Final = 0.1
"""How long a page waits for a new answer while there is an older one; the next look at the page has it."""
CHANGED_S: Final = 5.0
"""How long it waits after a change from here: the older answer lacks that."""
ANSWER_S: Final = 15.0
"""How long a question may take."""


@dataclass(frozen=True, slots=True)
class Sample(Generic[T]):
    """An answer, how old it is, and the reason why there is no newer one ("" where there is none)."""

    value: T
    age_s: float
    failure: str = ""


class NoSample(Exception):
    """A question has no answer yet; the message says why."""


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
        self._failure = ""
        self._is_forgotten = False
        self._patience_s = PATIENCE_S
        self._asking: asyncio.Task[None] | None = None
        self.used_s = now_s()
        """When it was last read."""

    async def get(self) -> Sample[T]:
        """Return the newest answer that is there soon. Raises NoSample while there is none at all."""
        self.used_s = self._now_s()
        is_fresh = self._answer is not None and self._now_s() - self._answer[1] <= self._fresh_s
        if is_fresh and not self._is_forgotten:
            return self._sample()
        if self._asking is None:
            self._asking = self._tasks.create_task(self._renew())
        await asyncio.wait([self._asking], timeout=ANSWER_S + 1 if self._answer is None else self._patience_s)
        return self._sample()

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
            raise NoSample(self._failure or "there is no answer yet")
        value, at_s = self._answer
        return Sample(value, self._now_s() - at_s, self._failure)

    async def _renew(self) -> None:
        try:
            self._is_forgotten = False
            async with asyncio.timeout(ANSWER_S):
                self._answer = await self._ask(), self._now_s()
            self._failure, self._patience_s = "", PATIENCE_S
        except TimeoutError:
            self._failure = f"no answer within {ANSWER_S:g} s"
        except (NoSample, ClientError, KafkaError, OSError, ValueError) as error:
            self._failure = " ".join(str(error).split()) or type(error).__name__
        except Exception as error:  # of one question: the others of the group go on
            _log.exception("a question failed")
            self._failure = f"the console failed ({type(error).__name__}); its log says why"
        finally:
            self._asking = None
