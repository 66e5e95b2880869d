"""The failure policy of a processor: verdicts, dead letters, and keys that are set aside."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from ottla.consumer import ConsumerRecord
from ottla.producer import ProducerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import DeadLetterDelayed, DeadLetterRejected, KeySetAside, RecordUndecodable
from ottla.streams.failures.dead_letters import DeadLetters
from ottla.streams.failures.retry_policy import RetryPolicy
from ottla.streams.seams import FinalFailure, Handler, Verdict, Work, state_of


class FailureHandling:
    """Implements `FailurePolicy`, and wraps a handler so that no attempt follows a final failure.

    A dead letter that was not acknowledged is sent again after a wait, as a retry of its work: its lane
    waits, and no worker does.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        dead_letters: DeadLetters | None,
        poison_keys: PoisonKeys | None,
        *,
        chance: Callable[[], float],
        now_ms: Callable[[], int],
        uses_lanes: bool = False,
    ) -> None:
        self.policy = policy
        self.dead_letters = dead_letters
        self.poison_keys = poison_keys
        self._chance = chance
        self._now_ms = now_ms
        self._uses_lanes = uses_lanes

    def decide(self, work: Work, error: BaseException, now_ms: int) -> Verdict:
        """Return what happens to work that failed."""
        return self.policy.decide(error, work.attempt, now_ms, self._chance())

    async def set_aside(self, work: Work, error: BaseException) -> None:
        """Send the work's dead letters; return when they are acknowledged. Sets its key aside, if so set.

        Raises DeadLetterDelayed when they were not acknowledged: after a retry the wrapped handler raises
        `error` again without a call, and they are sent again. Raises DeadLetterRejected if that is in vain.
        """
        state = state_of(work)
        final = state.final
        if final is None:
            final = state.final = FinalFailure(error, work.attempt)
        if self.poison_keys is not None and not isinstance(final.error, KeySetAside):
            self.poison_keys.add(work.partition, self._key(work), work.offset, self._now_ms())
        await self._send(
            work, final, [record for record in work.records if record.offset not in state.set_aside_offsets]
        )

    async def set_aside_undecodable(self, work: Work, errors: Sequence[RecordUndecodable]) -> None:
        """Send dead letters for the records of a batch that cannot be decoded, once; the others are handled.

        Raises the first error that stops the processor instead, and as `set_aside` does.
        """
        state = state_of(work)
        records = {record.offset: record for record in work.records}
        for error in errors:
            action = self.policy.action_for(error)
            if action == "skip" or error.offset in state.set_aside_offsets:
                continue
            if action == "stop" or self.dead_letters is None:
                raise error
            failure = FinalFailure(error, work.attempt, work.attempt - 1)
            await self._send(work, failure, [records[error.offset]])
            state.set_aside_offsets.add(error.offset)

    def letters_of(
        self, records: Sequence[ConsumerRecord], error: Exception, attempts: int, *, is_short: str
    ) -> list[ProducerRecord] | None:
        """Return the dead letters of records whose outputs failed; none to skip them, None to stop.

        Those for the topic `is_short` are short: it has refused one for its size.
        """
        action = self.policy.action_for(error)
        if action == "skip":
            return []
        if action != "dead-letter" or self.dead_letters is None:
            return None
        return self.dead_letters.made(records, FinalFailure(error, attempts), is_short=is_short)

    def wrap(self, handler: Handler) -> Handler:
        """Return a handler that raises for work that failed for good, or whose key is set aside."""
        if self.dead_letters is None:
            return handler

        async def handle(work: Work) -> None:
            if work.context is not None and (final := state_of(work).final) is not None:
                raise final.error
            if self.poison_keys:
                self._check_key(work)
            await handler(work)

        return handle

    def _check_key(self, work: Work) -> None:
        assert self.poison_keys is not None
        failed = self.poison_keys.failed_offset(work.partition, self._key(work), self._now_ms())
        if failed is not None and failed < work.offset:
            raise KeySetAside(work.partition, work.offset, failed)

    async def _send(self, work: Work, failure: FinalFailure, records: Sequence[ConsumerRecord]) -> None:
        assert self.dead_letters is not None, "a verdict of DeadLetter needs a topic"
        try:
            await self.dead_letters.send(records, failure)
        except DeadLetterRejected:
            raise
        except Exception as error:
            failure.sends += 1
            raise DeadLetterDelayed(self.dead_letters.topic, failure.sends, error) from error

    def _key(self, work: Work) -> Hashable:
        """Return the key that a work is set aside by; None for a batch of many keys."""
        if self._uses_lanes:
            return work.lane
        keys = {record.key for record in work.records}
        return keys.pop() if len(keys) == 1 else None


class PoisonKeys:
    """The lanes that are set aside, each with the offset of the record that failed, until their time is over.

    Above `max_keys` the oldest is forgotten: its records are handled again. So is a key after `ttl_ms`; if it
    fails once more, it is set aside once more. Later records that follow into the dead-letter topic do not
    make the time longer.
    """

    def __init__(self, max_keys: int, ttl_ms: int) -> None:
        self._max_keys = max_keys
        self._ttl_ms = ttl_ms
        # In the order of their ends, because all have the same time to live.
        self._keys: dict[tuple[TopicPartition, Hashable], tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, partition: TopicPartition, lane: Hashable, offset: int, now_ms: int) -> None:
        """Set a lane aside; one that is set aside already stays so with its first offset."""
        self._expire(now_ms)
        if lane is None or (partition, lane) in self._keys:
            return
        self._keys[partition, lane] = (offset, now_ms + self._ttl_ms)
        if len(self._keys) > self._max_keys:
            del self._keys[next(iter(self._keys))]

    def failed_offset(self, partition: TopicPartition, lane: Hashable, now_ms: int) -> int | None:
        """Return the offset of the record for which a lane is set aside; None if it is not."""
        if not self._keys:
            return None
        self._expire(now_ms)
        found = self._keys.get((partition, lane))
        return None if found is None else found[0]

    def _expire(self, now_ms: int) -> None:
        while self._keys:
            oldest = next(iter(self._keys))
            if self._keys[oldest][1] > now_ms:
                return
            del self._keys[oldest]
