"""The synchronous producer and consumer, from one thread and from many."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest

from ottla.client.blocking import NotRunning
from ottla.client.errors import DeadlineExceeded
from ottla.consumer.record import ConsumerRecord
from ottla.consumer.sync import SyncConsumer
from ottla.producer import BufferFull, RecordTooLarge
from ottla.producer.sync import SyncProducer
from ottla.protocol.topics import TopicPartition

THREADS = 8
EACH = 500


def test_what_is_sent_is_read_back(cluster: Any, fresh: Callable[[str], str]) -> None:
    topic = fresh("sync")
    with SyncProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        first = producer.send_and_wait(topic, b"one", key=b"k", headers=[("h", b"v")])
        second = producer.send(topic, {"two": 2})
        assert second.result(timeout=30).offset == first.offset + 1
        assert second.done()
        assert second.exception() is None

    with SyncConsumer(
        topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        one, two = islice(consumer, 2)

    assert (one.key, one.value, one.headers) == (b"k", b"one", (("h", b"v"),))
    assert two.value == b"\x81\xa3two\x02"


def test_many_threads_share_a_producer(cluster: Any, fresh: Callable[[str], str]) -> None:
    topic = fresh("threads")

    def send(producer: SyncProducer, thread: int) -> None:
        for number in range(EACH):
            producer.send(topic, f"{thread}:{number}", key=str(thread))

    with SyncProducer(cluster.bootstrap_servers) as producer, ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(send, producer, thread) for thread in range(THREADS)]:
            done.result()
        producer.flush(60)
        assert producer.metrics.record_send_total >= THREADS * EACH

    seen: dict[str, list[int]] = {}
    with SyncConsumer(
        topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        for record in islice(consumer, THREADS * EACH):
            thread, _, number = record.value.decode().partition(":")
            seen.setdefault(thread, []).append(int(number))

    assert seen == {str(thread): list(range(EACH)) for thread in range(THREADS)}


def test_leaving_the_block_sends_what_waits(cluster: Any, fresh: Callable[[str], str]) -> None:
    topic = fresh("leaving")

    with SyncProducer(cluster.bootstrap_servers, linger_ms=10_000) as producer:
        sent = [producer.send(topic, str(number)) for number in range(2_000)]

    assert all(each.done() for each in sent)
    assert {each.result().topic for each in sent} == {topic}
    with pytest.raises(NotRunning):
        producer.send(topic, b"late")


def test_callbacks_hear_of_every_record(cluster: Any, fresh: Callable[[str], str]) -> None:
    topic = fresh("callbacks")
    heard: list[int] = []

    with SyncProducer(cluster.bootstrap_servers) as producer:
        for number in range(100):
            producer.send(topic, str(number)).add_done_callback(lambda ack: heard.append(ack.result().offset))

    assert len(heard) == 100


def test_what_is_wrong_with_a_record_is_in_its_acknowledgement(
    cluster: Any, fresh: Callable[[str], str]
) -> None:
    topic = fresh("wrong")
    with SyncProducer(cluster.bootstrap_servers, max_request_size=1_000) as producer:
        large = producer.send(topic, b"x" * 2_000)
        fine = producer.send(topic, b"x")

        with pytest.raises(RecordTooLarge):
            large.result(30)
        assert isinstance(large.exception(), RecordTooLarge)
        assert fine.result(30).topic == topic


def test_send_waits_for_room_and_loses_nothing(cluster: Any, fresh: Callable[[str], str]) -> None:
    topic = fresh("room")

    with SyncProducer(cluster.bootstrap_servers, buffer_memory=50_000, batch_size=10_000) as producer:
        sent = [producer.send(topic, b"x" * 1_000) for _ in range(1_000)]
        assert sorted(each.result(60).offset for each in sent if each.result(60).partition == 0) == list(
            range(sum(each.result().partition == 0 for each in sent))
        )


def test_without_waiting_a_full_buffer_is_an_error(cluster: Any, fresh: Callable[[str], str]) -> None:
    topic = fresh("full")
    refused = 0

    with SyncProducer(
        cluster.bootstrap_servers, buffer_memory=5_000, linger_ms=50, max_block_ms=0
    ) as producer:
        for _ in range(500):
            try:
                refused += isinstance(producer.send(topic, b"x" * 500).exception(0.001), BufferFull)
            except BufferFull:
                refused += 1
            except TimeoutError:
                continue

    assert refused


def test_many_records_at_once(cluster: Any, fresh: Callable[[str], str]) -> None:
    topic = fresh("many")
    with SyncProducer(cluster.bootstrap_servers) as producer:
        before = producer.send(topic, b"before", partition=0)
        many = producer.send_many(topic, [b"a", b"b", b"c"], keys=[b"1", None, b"3"], partition=0)

        offsets = [metadata.offset for metadata in many.result(30)]
        assert producer.partitions_for(topic)

    assert len(many) == 3
    assert many.done()
    assert offsets == [before.result().offset + 1 + index for index in range(3)]


def test_a_transaction_of_a_thread_is_written_whole_or_not_at_all(
    cluster: Any, fresh: Callable[[str], str]
) -> None:
    topic, group, place = fresh("transaction"), fresh("group"), TopicPartition(fresh("read"), 0)
    with SyncProducer(cluster.bootstrap_servers, transactional_id=fresh("writer")) as producer:
        with producer.transaction():
            producer.send_and_wait(place.topic, b"read", partition=0)
        with producer.transaction():
            producer.send(topic, b"a", partition=0)
            producer.send(topic, b"b", partition=0)
            producer.send_offsets({place: 1}, group)
        with pytest.raises(LookupError), producer.transaction():
            producer.send(topic, b"lost", partition=0)
            raise LookupError
        with producer.transaction():
            producer.send(topic, b"c", partition=0)

    with SyncConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        group_id=group,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as consumer:
        assert [record.value for record in islice(consumer, 3)] == [b"a", b"b", b"c"]
        assert consumer.committed(place) == 1


def test_a_producer_without_a_broker_says_so() -> None:
    with pytest.raises(DeadlineExceeded, match=r"127\.0\.0\.1:1"):
        SyncProducer("127.0.0.1:1", bootstrap_timeout_ms=200).start()


def test_iterating_ends_when_nothing_comes(cluster: Any, fresh: Callable[[str], str]) -> None:
    topic = fresh("ending")
    with SyncProducer(cluster.bootstrap_servers) as producer:
        producer.send_many(topic, [b"a", b"b"], partition=0).result(30)

    with SyncConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=1_500,
    ) as consumer:
        first = [record.value for record in consumer]
        with SyncProducer(cluster.bootstrap_servers) as producer:
            producer.send_and_wait(topic, b"c", partition=0)
        second = [record.value for record in consumer]

    assert (first, second) == ([b"a", b"b"], [b"c"])


def test_a_record_is_finished_when_the_next_is_asked_for(cluster: Any, fresh: Callable[[str], str]) -> None:
    topic, group = fresh("finished"), fresh("group")
    with SyncProducer(cluster.bootstrap_servers) as producer:
        producer.send_many(topic, [b"a", b"b", b"c"], partition=0).result(30)

    def read(count: int) -> list[bytes]:
        with SyncConsumer(
            topic,
            group_id=group,
            bootstrap_servers=cluster.bootstrap_servers,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            values = [record.value for record in islice(consumer, count)]
            consumer.commit()
            assert consumer.committed(TopicPartition(topic, 0)) == consumer.position(TopicPartition(topic, 0))
            return values

    assert read(2) == [b"a", b"b"]
    assert read(1) == [b"c"]


def test_all_that_a_consumer_can_do_can_be_done_from_a_thread(
    cluster: Any, fresh: Callable[[str], str]
) -> None:
    topic, group = fresh("all"), fresh("group")
    place = TopicPartition(topic, 0)
    with SyncProducer(cluster.bootstrap_servers) as producer:
        sent = producer.send_many(topic, [b"a", b"b", b"c"], partition=0).result(30)

    with SyncConsumer(bootstrap_servers=cluster.bootstrap_servers, group_id=group) as consumer:
        consumer.assign([place])
        assert consumer.assignment() == {place}
        consumer.seek_to_beginning()
        assert consumer.position(place) == 0
        assert consumer.getone().value == b"a"
        assert {
            tp: [each.value for each in some] for tp, some in consumer.getmany(timeout_ms=5_000).items()
        } == {place: [b"b", b"c"]}
        assert (consumer.highwater(place), consumer.lag(place)) == (3, 0)
        consumer.seek(place, 1)
        assert [each.value for each in next(consumer.batches())] == [b"b", b"c"]
        consumer.commit_nowait({place: 2}).result(30)
        assert consumer.committed_offsets([place])[place].offset == 2
        assert consumer.seek_to_committed() == {place: 2}
        consumer.pause(place)
        assert consumer.paused() == {place}
        assert consumer.getmany(timeout_ms=50) == {}
        consumer.resume(place)
        assert next(consumer).value == b"c"
        assert consumer.beginning_offsets([place]) == {place: 0}
        assert consumer.end_offsets([place]) == {place: 3}
        found = consumer.offsets_for_times({place: sent[0].timestamp_ms})[place]
        assert found is not None
        assert found.offset == 0
        consumer.seek_to_end(place)
        assert consumer.position(place) == 3
        consumer.seek_to_timestamp(sent[0].timestamp_ms)
        assert next(consumer).offset == 0
        assert topic in consumer.topics()
        assert 0 in (consumer.partitions_for_topic(topic) or ())
        assert consumer.metrics.records_consumed_total >= 3
        assert consumer.group_metadata().group_id == group


def test_columns_go_and_come_from_a_thread(cluster: Any, fresh: Callable[[str], str]) -> None:
    pa = pytest.importorskip("pyarrow")
    topic = fresh("columns")
    with SyncProducer(cluster.bootstrap_servers) as producer:
        rows = producer.send_arrow(topic, pa.table({"what": [b"a", b"b"], "partition": [0, 0]}), value="what")
        assert [each.offset for each in rows.result(30)] == [0, 1]

    with SyncConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=1_000,
    ) as consumer:
        batch = consumer.fetch_arrow(timeout_ms=10_000, columns=["offset", "value"])
        assert batch.to_pydict() == {"offset": [0, 1], "value": [b"a", b"b"]}
        consumer.seek_to_beginning()
        assert [each.num_rows for each in consumer.arrow_batches()] == [2]


def test_threads_share_a_consumer_and_each_record_goes_to_one(
    cluster: Any, fresh: Callable[[str], str]
) -> None:
    topic = fresh("sharing")
    seen: Counter[bytes] = Counter()
    with SyncProducer(cluster.bootstrap_servers) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(4_000)]).result(30)

    def read(consumer: SyncConsumer) -> list[bytes]:
        return [record.value for record in consumer]

    with (
        SyncConsumer(
            topic,
            bootstrap_servers=cluster.bootstrap_servers,
            auto_offset_reset="earliest",
            consumer_timeout_ms=2_000,
        ) as consumer,
        ThreadPoolExecutor(4) as pool,
    ):
        for values in pool.map(read, [consumer] * 4):
            seen.update(values)

    assert len(seen) == 4_000
    assert set(seen.values()) == {1}


def test_a_listener_may_call_the_consumer(cluster: Any, fresh: Callable[[str], str]) -> None:
    topic, group = fresh("listening"), fresh("group")
    with SyncProducer(cluster.bootstrap_servers) as producer:
        producer.send_many(topic, [b"a", b"b", b"c"], partition=0).result(30)
    on: list[str] = []

    class Listener:
        def on_partitions_assigned(self, assigned: frozenset[TopicPartition]) -> None:
            on.append(threading.current_thread().name)
            for partition in assigned:
                consumer.seek(partition, 2 if partition.partition == 0 else 0)
                assert consumer.position(partition) in (0, 2)

        def on_partitions_revoked(self, revoked: frozenset[TopicPartition]) -> None:
            on.append("revoked")

    consumer = SyncConsumer(bootstrap_servers=cluster.bootstrap_servers, group_id=group)
    with consumer:
        consumer.subscribe([topic], listener=Listener())
        assert next(consumer).value == b"c"

    assert "the consumer" not in on
    assert on[-1] == "revoked"


def test_closing_ends_a_thread_that_waits_for_records(cluster: Any, fresh: Callable[[str], str]) -> None:
    topic = fresh("closing")
    with SyncProducer(cluster.bootstrap_servers) as producer:
        producer.send_and_wait(topic, b"a", partition=0)
    consumer = SyncConsumer(
        topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
    ).start()
    assert next(consumer).value == b"a"

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, consumer)
        consumer.stop()

        with pytest.raises(NotRunning):
            waiting.result(30)


def test_ctrl_c_ends_waiting_for_a_record_and_none_is_lost(cluster: Any, fresh: Callable[[str], str]) -> None:
    done = run(
        f"""
        import os, signal, threading
        from ottla.consumer.sync import SyncConsumer
        from ottla.producer.sync import SyncProducer

        servers, topic = {cluster.bootstrap_servers!r}, {fresh("ctrl-c")!r}
        with SyncProducer(servers) as producer:
            producer.send_and_wait(topic, b"a", partition=0)
            with SyncConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
                print(next(consumer).value)
                threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
                try:
                    next(consumer)
                except KeyboardInterrupt:
                    producer.send_and_wait(topic, b"b", partition=0)
                    print("interrupted, then", next(consumer).value)
        """
    )

    assert done.stdout == "b'a'\ninterrupted, then b'b'\n"


def test_a_record_of_an_interrupted_wait_may_be_of_a_partition_that_went_meanwhile(
    cluster: Any, fresh: Callable[[str], str]
) -> None:
    partition = TopicPartition(fresh("gone"), 0)
    with SyncProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send_and_wait(partition.topic, b"a", partition=0)
    with SyncConsumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        record = next(consumer)

        async def came() -> ConsumerRecord:
            return record

        consumer._interrupted = consumer._thread.submit(came)  # as Ctrl-C leaves it
        consumer.assign([])
        assert consumer.getmany() == {}


def test_ctrl_c_as_records_are_given_loses_none_of_them(cluster: Any, fresh: Callable[[str], str]) -> None:
    done = run(
        f"""
        import os, signal
        from ottla.consumer.sync import SyncConsumer
        from ottla.producer.sync import SyncProducer
        from ottla.protocol.topics import TopicPartition

        class Interrupts:
            times = 0
            def on_consume(self, records):  # they are taken, and on their way to the application
                self.times += 1
                if self.times == 1:
                    os.kill(os.getpid(), signal.SIGINT)
                return records

        servers, partition = {cluster.bootstrap_servers!r}, TopicPartition({fresh("ctrl-c")!r}, 0)
        with SyncProducer(servers) as producer:
            for value in (b"a", b"b"):
                producer.send_and_wait(partition.topic, value, partition=0)
        with SyncConsumer(
            bootstrap_servers=servers, group_id={fresh("group")!r}, auto_offset_reset="earliest",
            interceptors=[Interrupts()],
        ) as consumer:
            consumer.assign([partition])
            try:
                print(consumer.getmany(timeout_ms=None))
            except KeyboardInterrupt:
                consumer.commit()
                print("interrupted at", consumer.position(partition), consumer.committed(partition))
            print([each.value for each in consumer.getmany(timeout_ms=30_000)[partition]])
        """
    )

    assert done.stdout == "interrupted at 0 0\n[b'a', b'b']\n"


def test_records_of_a_wait_that_a_signal_handler_ended_come_with_the_next_call(
    cluster: Any, fresh: Callable[[str], str]
) -> None:
    partition = TopicPartition(fresh("ended"), 0)
    with SyncProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send_and_wait(partition.topic, b"a", partition=0)
    with SyncConsumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        inner = consumer._opened
        call = consumer._thread.submit(lambda: inner.getmany(timeout_ms=None))
        assert call.result(30)
        consumer._interrupted = call  # as a handler that raises leaves it
        assert next(consumer).value == b"a"


def test_a_forked_worker_is_told_to_start_its_own(cluster: Any, fresh: Callable[[str], str]) -> None:
    done = run(
        f"""
        import os
        from ottla.producer.sync import SyncProducer

        servers, topic = {cluster.bootstrap_servers!r}, {fresh("fork")!r}
        with SyncProducer(servers) as producer:
            child = os.fork()
            if child == 0:
                try:
                    producer.send(topic, b"from the child")
                except Exception as error:
                    print(type(error).__name__, flush=True)
                with SyncProducer(servers) as own:
                    print(own.send_and_wait(topic, b"from its own").topic == topic, flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            print(producer.send_and_wait(topic, b"from the parent").topic == topic)
        """
    )

    assert done.stdout == "Forked\nTrue\nTrue\n"


def test_a_script_that_forgets_to_stop_sends_all_the_same(cluster: Any, fresh: Callable[[str], str]) -> None:
    topic = fresh("forgotten")
    run(
        f"""
        from ottla.producer.sync import SyncProducer

        producer = SyncProducer({cluster.bootstrap_servers!r}, linger_ms=5_000).start()
        producer.send({topic!r}, b"remember me")
        """
    )

    with SyncConsumer(
        topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        assert next(consumer).value == b"remember me"


def run(code: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done
