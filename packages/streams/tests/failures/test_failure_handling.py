"""Dead letters and keys set aside, without a broker."""

from __future__ import annotations

import pytest

from ottla.consumer import ConsumerRecord
from ottla.producer import ProducerRecord, RecordTooLarge
from ottla.protocol.errors import MessageTooLarge, NotEnoughReplicas, TopicAuthorizationFailed
from ottla.streams.errors import DeadLetterDelayed, DeadLetterRejected, KeySetAside, RecordUndecodable
from ottla.streams.failures.dead_letters import DeadLetters
from ottla.streams.failures.failure_handling import FailureHandling, PoisonKeys
from ottla.streams.failures.retry_policy import RetryPolicy
from ottla.streams.seams import DeadLetter, Retry, Work
from peers.stream_works import OneWork


class Topic:
    """A dead-letter topic that fails as it is told."""

    def __init__(self, *failures: Exception | None, limit_bytes: int = 1 << 20) -> None:
        self.records: list[ProducerRecord] = []
        self._failures = list(failures)
        self._limit_bytes = limit_bytes

    async def send(self, record: ProducerRecord) -> None:
        if self._failures and (failure := self._failures.pop(0)) is not None:
            raise failure
        headers = dict(record.headers)
        size = (
            len(record.key or b"")
            + len(record.value or b"")
            + sum(len(each or b"") for each in headers.values())
        )
        if size > self._limit_bytes:
            raise RecordTooLarge(size, self._limit_bytes)
        self.records.append(record)


def handling(topic: Topic, *, poison: bool = False) -> FailureHandling:
    return FailureHandling(
        RetryPolicy(retries=0, has_dead_letters=True),
        DeadLetters("orders.failed", "billing", topic.send),
        PoisonKeys(10, 1_000) if poison else None,
        chance=lambda: 0.5,
        now_ms=lambda: 0,
    )


def work(offset: int, key: bytes | None = b"k", value: bytes | None = b"\x00v") -> OneWork:
    return OneWork([ConsumerRecord("orders", 3, offset, 99, key, value, [("own", b"\xff"), ("none", None)])])


async def test_a_dead_letter_is_the_record_with_headers_of_its_cause() -> None:
    topic = Topic()

    await handling(topic).set_aside(work(5), ValueError("no such customer"))

    (letter,) = topic.records
    assert (letter.topic, letter.key, letter.value) == ("orders.failed", b"k", b"\x00v")
    assert letter.headers == (
        ("own", b"\xff"),
        ("none", None),
        ("dead-reason", b"ValueError: no such customer"),
        ("dead-topic", b"orders"),
        ("dead-partition", b"3"),
        ("dead-offset", b"5"),
        ("dead-timestamp", b"99"),
        ("dead-exception", b"builtins.ValueError"),
        ("dead-message", b"no such customer"),
        ("dead-attempts", b"1"),
        ("dead-group", b"billing"),
    )


async def test_a_long_message_of_an_exception_is_bounded() -> None:
    topic = Topic()

    await handling(topic).set_aside(work(5), ValueError("x" * 10_000_000))

    headers = dict(topic.records[0].headers)
    assert all(len(each or b"") < 3_100 for each in headers.values())


@pytest.mark.parametrize("limit_bytes", [2_500, 3_000])
async def test_a_record_too_large_with_its_cause_is_cut_and_says_so(limit_bytes: int) -> None:
    topic = Topic(limit_bytes=limit_bytes)

    await handling(topic).set_aside(work(5, value=b"v" * 3_000), ValueError("no"))

    (letter,) = topic.records
    assert (letter.key, letter.value) == (b"k", b"v" * 1_024)
    assert dict(letter.headers)["dead-truncated"] == b"key 1, value 3000, 2 headers"


async def test_a_topic_too_small_even_for_the_cut_record_is_rejected_in_one_line() -> None:
    topic = Topic(MessageTooLarge(), MessageTooLarge())

    with pytest.raises(
        DeadLetterRejected, match=r"'orders.failed' takes no dead letter for topic orders"
    ) as it:
        await handling(topic).set_aside(work(5), ValueError("no"))
    assert "\n" not in str(it.value)


async def test_a_topic_that_may_not_be_written_is_rejected() -> None:
    with pytest.raises(DeadLetterRejected, match="check dead_letter_topic, its limits and ACLs"):
        await handling(Topic(TopicAuthorizationFailed())).set_aside(work(5), ValueError("no"))


async def test_a_dead_letter_that_fails_is_sent_again_without_another_attempt() -> None:
    topic = Topic(NotEnoughReplicas(), TimeoutError(), None)
    failures = handling(topic)
    calls: list[int] = []

    async def fail(work: Work) -> None:
        calls.append(work.attempt)
        raise ValueError("no")

    handler, one = failures.wrap(fail), work(5)
    steps: list[str] = []
    error: BaseException = ValueError("not yet")
    for attempt in (1, 2, 3):
        one.attempt = attempt
        with pytest.raises(ValueError, match="no") as raised:
            await handler(one)
        assert failures.decide(one, raised.value, 0) == DeadLetter()
        try:
            await failures.set_aside(one, raised.value)
            steps.append("acknowledged")
        except DeadLetterDelayed as delayed:
            error = delayed
            steps.append(str(failures.decide(one, error, 0)))

    assert steps == [str(Retry(100)), str(Retry(200)), "acknowledged"]
    assert calls == [1]
    assert dict(topic.records[0].headers)["dead-attempts"] == b"1"


async def test_later_records_of_a_poison_key_follow_it_without_an_attempt() -> None:
    topic = Topic()
    failures = handling(topic, poison=True)
    handled: list[int] = []

    async def handle(work: Work) -> None:
        handled.append(work.offset)

    handler = failures.wrap(handle)
    await failures.set_aside(work(5), ValueError("no"))
    with pytest.raises(KeySetAside, match="since its record at offset 5 failed") as aside:
        await handler(work(8))
    await failures.set_aside(work(8), aside.value)
    await handler(work(9, key=b"other"))
    await handler(work(10, key=None))

    assert handled == [9, 10]
    reasons = [dict(each.headers)["dead-reason"] for each in topic.records]
    assert [dict(each.headers)["dead-offset"] for each in topic.records] == [b"5", b"8"]
    assert isinstance(reasons[1], bytes)
    assert reasons[1].startswith(b"KeySetAside: the key is set aside since its record at offset 5 failed")


async def test_the_records_of_a_batch_that_cannot_be_decoded_are_sent_once() -> None:
    topic = Topic()
    failures = handling(topic)
    records = [ConsumerRecord("orders", 3, at, 99, b"k", b"v%d" % at) for at in range(4)]
    batch = OneWork(records)
    errors = [RecordUndecodable(records[at].topic_partition, at, ValueError("no JSON")) for at in (1, 3)]

    await failures.set_aside_undecodable(batch, errors)
    await failures.set_aside_undecodable(batch, errors)
    await failures.set_aside(batch, ValueError("the others"))

    assert [each.value for each in topic.records] == [b"v1", b"v3", b"v0", b"v2"]
