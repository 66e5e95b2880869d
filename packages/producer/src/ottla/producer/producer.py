"""The producer: records in, batches out, acknowledgements back."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, Unpack

from ottla.client.cluster import Cluster, Topic
from ottla.client.context_task import ContextTask
from ottla.client.errors import ClientError
from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.client.interceptors import Interceptors
from ottla.client.serialization import SerializationFailed, serializer
from ottla.client.settings import chosen
from ottla.producer.config import ProducerConfig, ProducerSettings
from ottla.producer.errors import BufferFull, ProducerClosed, RecordTooLarge
from ottla.producer.metrics import ProducerMetrics
from ottla.producer.partitioner import partitioner
from ottla.producer.prepared import PreparedTransaction
from ottla.producer.record import ProducerRecord, RecordMetadata
from ottla.producer.room import Room
from ottla.producer.sender import Sender
from ottla.producer.sending import (
    Acknowledgement,
    Acknowledgements,
    Batch,
    BatchBuilder,
    Gathering,
    Headers,
    Route,
    RowSending,
    arrow_rows,
    packed_headers,
    whole_ms,
)
from ottla.producer.transaction_state import Phase, TransactionError, TransactionFailed
from ottla.producer.transactions import Transactions
from ottla.producer.unplaced import Unplaced
from ottla.protocol.errors import ErrorCode, KafkaError, error_for
from ottla.protocol.topics import TopicPartition, why_illegal_topic_name

log = logging.getLogger(__name__)

# A record beside its key, value and headers, at most: varints, attributes, counts.
RECORD_OVERHEAD = 40
BATCH_HEADER = 61
# So many records are queued at a stretch: a millisecond or two, then others have their turn.
RECORDS_AT_A_STRETCH = 8_192
# What is still sent when the block was left by an exception gets so long.
LAST_FLUSH_S = 5.0
FOREVER_S = 1e9
# So many topics are named where some are to blame.
TOPICS_NAMED = 5


class Producer(RowSending):
    """Writes records to topics.

        async with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
            metadata = await producer.send_and_wait("orders", b"one coffee", key=b"josef")

    Leaving the block sends what is still waiting. With the defaults a record is acknowledged by all in-sync
    replicas and written once, in the order of `send` for each partition. Settings are those of
    `ProducerConfig`, `ClientConfig` and `SecurityConfig`, as keywords.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        /,
        config: ProducerConfig | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        if bootstrap_servers is not None:
            settings["bootstrap_servers"] = bootstrap_servers
        self.config = config = chosen(ProducerConfig, config, settings)
        super().__init__(
            Gathering(
                batch_size=config.batch_size,
                linger_ms=config.linger_ms,
                buffer_memory=config.buffer_memory,
                max_record_size=config.max_request_size,
                monotonic_ms=self._now_ms,
            )
        )
        self.metrics = ProducerMetrics(buffer_total_bytes=config.buffer_memory, available=self._available)
        self._cluster = Cluster(config.client.bootstrap_servers, config.client)
        self._room = Room(self.gathering, config.max_block_ms, self.metrics)
        self._unplaced = Unplaced(self._lost_unplaced)
        self._interceptors = Interceptors(config.interceptors)
        self._on_send = self._interceptors.methods("on_send")
        self._on_enqueue = self._interceptors.methods("on_enqueue")
        self._on_batch = self._interceptors.methods("on_batch")
        self._on_acknowledgement = self._interceptors.methods("on_acknowledgement")
        self._serialize_key = serializer(config.key_serializer, is_key=True)
        self._serialize_value = serializer(config.value_serializer)
        self._partitioner = partitioner(config.partitioner)
        self._told_of_full = getattr(self._partitioner, "batch_full", None)
        self._transactions = self._transactional_side()
        self._sender = Sender(
            self._cluster,
            self.gathering,
            config,
            self.metrics,
            on_metadata=self._update_route,
            on_room=self._room.open,
            on_batch=self._batch_leaves if self._on_batch else None,
            transactions=self._transactions,
        )
        self.metrics.in_flight = lambda: self._sender.requests_in_flight
        self.gathering.wake = self._sender.wake
        self._tasks: asyncio.TaskGroup | None = None
        self._running: ContextTask | None = None
        self._open = False

    def __repr__(self) -> str:
        state = "open" if self._open else "not open"
        return f"<Producer of {self.config.client.bootstrap_servers}, {state}>"

    # --- opening and closing

    async def start(self) -> None:
        """Open the producer; `stop` closes it. For code that has no block to put it in.

        When it raises, the producer is not open, and may be started again.
        """
        if self._running is not None:
            return
        self._running = running = ContextTask(self)
        try:
            await running.start()
        except BaseException:
            self._running = None
            raise

    async def stop(self) -> None:
        """Send what is still waiting, and close."""
        running, self._running = self._running, None
        if running is not None:
            await running.stop()

    async def __aenter__(self) -> Self:
        await self._cluster.__aenter__()
        await self._start_transactions()
        self.gathering.loop = asyncio.get_running_loop()
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._sending = self._tasks.create_task(self._sender.run(self._tasks))
        self._refreshing = self._tasks.create_task(self._keep_fresh())
        self._open = True
        self._choose_way()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._leave_transaction()
            self._open = self.quick = False
            await self._last_flush(kind)
        except BaseException as failed:  # cancelled, mostly: then requests that are out are not waited for
            await self._end(failed)
            raise
        await self._end(error)

    async def _end(self, error: BaseException | None) -> None:
        assert self._tasks is not None
        self._give_up_the_rest()
        try:
            await self._tasks.__aexit__(None if error is None else type(error), error, None)
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise
        finally:
            await self._cluster.close()

    async def _last_flush(self, kind: type[BaseException] | None) -> None:
        if self._sending.done():
            return  # the sender died: nothing would ever be sent
        if kind is None:
            await self.flush()
            return
        try:
            await self.flush(LAST_FLUSH_S)
        except TimeoutError:
            return  # what is left fails with ProducerClosed

    def _give_up_the_rest(self) -> None:
        closed = ProducerClosed("the producer was closed before the record was acknowledged")
        self._open = self.quick = False
        self._sender.stop()
        self._unplaced.fail_all(closed)
        self._room.close(closed)
        self._sending.cancel()
        self._refreshing.cancel()

    # --- sending

    async def send_and_wait(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """Send a record and wait for its acknowledgement. Raises what kept it from being written."""
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    async def send_many(
        self,
        topic: str,
        values: Iterable[object],
        *,
        keys: Iterable[object] | None = None,
        partition: int | None = None,
        timestamps_ms: Iterable[int] | None = None,
        headers: Headers | None = None,
    ) -> Acknowledgements:
        """Take many records, in their order; return their Acknowledgements, which may be awaited as one.

        `keys` and `timestamps_ms` are as long as `values`; `headers` go with every record. Waits whenever the
        buffer is full. When it raises, some of the records may be queued: those before the one at fault.

        Interceptors that want to see records, and a custom partitioner where no partition is given, are
        called for each, as in `send`; then this is no quicker than a loop of `send`.
        """
        if isinstance(values, str | bytes | bytearray):
            raise TypeError(
                f"values must be a list of values, not {type(values).__name__}; send takes a single one"
            )
        given = list(values)  # the caller's may change while this waits
        stamps = None if timestamps_ms is None else list(timestamps_ms)
        given_keys = None if keys is None else list(keys)
        _refuse_other_lengths(len(given), keys=given_keys, timestamps_ms=stamps)
        self._refuse_unless_open()
        if self._is_shown or (self._partitioner is not None and partition is None):
            return await self._send_one_by_one(topic, given, given_keys, partition, stamps, headers)
        out = Acknowledgements()
        route = await self._route(topic)
        packed = packed_headers(headers)
        bytes_keys = None if given_keys is None else [self._key(topic, key) for key in given_keys]
        done = 0
        try:
            while done < len(given):
                await self._room.wait()
                self._refuse_unless_open()
                done = self._put_some(
                    route, given, bytes_keys, done, RECORDS_AT_A_STRETCH, partition, stamps, packed,
                    lambda value: self._value(topic, value), out,
                )  # fmt: skip
                await asyncio.sleep(0)
        finally:
            self._let_go(out)
        return out

    async def send_arrow(
        self,
        topic: str,
        data: object,
        *,
        value: str = "value",
        key: str = "key",
        timestamp: str = "timestamp",
        partition: str = "partition",
        headers: str = "headers",
    ) -> Acknowledgements:
        """Take the rows of Arrow columns as records; return their Acknowledgements, in the order of rows.

        `data` is a table or record batch of pyarrow, a polars DataFrame, or anything else that has
        `__arrow_c_stream__` or `__arrow_c_array__`; pyarrow itself is not needed. The other arguments name
        its columns: values and keys of bytes or text, timestamps (or int64 of milliseconds), partitions, and
        headers (a list of structs of key and value). All but values may be missing, or null. No Python object
        is made per row; serializers have no part in it. A custom partitioner is asked for rows that name no
        partition. Waits whenever the buffer is full. When it raises, the rows before the one at fault are
        queued. A producer with interceptors that want to see records refuses it: there are none to show.
        """
        names = {
            "value": value, "key": key, "timestamp": timestamp, "partition": partition, "headers": headers
        }  # fmt: skip
        self._refuse_when_shown("send_arrow", "use send_many")
        self._refuse_unless_open()
        route = await self._route(topic)
        out = Acknowledgements()
        try:
            for rows in arrow_rows(data, names):
                done = 0
                while done < rows.count:
                    await self._room.wait()
                    self._refuse_unless_open()
                    done = self._put_rows(route, rows, done, RECORDS_AT_A_STRETCH, out, self._choosing(route))
                    await asyncio.sleep(0)
        finally:
            self._let_go(out)
        return out

    def create_batch(self) -> BatchBuilder:
        """Return a batch to fill by hand, for `send_batch`; it takes `batch_size` bytes of records."""
        return BatchBuilder(min(self.config.batch_size, self.config.max_request_size))

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> Acknowledgement:
        """Send a batch that was filled by hand; the acknowledgement is that of its first record.

        A producer with interceptors that want to see records refuses it.
        """
        self._refuse_when_shown("send_batch", "use send")
        self._refuse_unless_open()
        if not batch.record_count():
            raise ValueError("the batch is empty")
        if batch.size() - BATCH_HEADER > self.config.max_request_size:  # a builder takes any first record
            raise RecordTooLarge(batch.size(), self.config.max_request_size)
        route = await self._route(topic)
        await self._room.wait()
        self._refuse_unless_open()
        return self._send_batch(batch, route, partition)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send everything that waits now, and return when all of it is acknowledged or given up.

        Raises TimeoutError when `timeout_s` is over before; what waits goes on waiting then. Errors are in
        the acknowledgements.
        """
        began_ms = self._now_ms()
        try:
            async with asyncio.timeout(timeout_s):
                await self._unplaced.placed()
                self.gathering.flush(True)
                self.gathering.close_open_batches()
                waiting = [batch.settled() for batch in self.gathering.everything()]
                if waiting:
                    await asyncio.wait(waiting)
        except TimeoutError:
            raise TimeoutError(self._what_waits(timeout_s)) from None
        finally:
            self.gathering.flush(False)
            self.metrics.flush_time_total_ms += self._now_ms() - began_ms

    def _what_waits(self, timeout_s: float | None) -> str:
        counts: Counter[str] = Counter(self._unplaced.counts())
        for batch in self.gathering.everything():
            counts[batch.partition.topic] += batch.record_count
        most = ", ".join(f"{count} of {topic!r}" for topic, count in counts.most_common(TOPICS_NAMED))
        more = f" and more of {len(counts) - TOPICS_NAMED} other topics" if len(counts) > TOPICS_NAMED else ""
        return f"records are not acknowledged after {timeout_s} s: {most}{more}"

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the partitions of a topic, which is created where brokers do that."""
        return set((await self._route(topic)).partitions)

    # --- transactions

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Write what is sent inside the block all together, or not at all when an exception leaves it.

        Needs `transactional_id`. Consumers with `isolation_level="read_committed"` see only what was
        committed. Raises TransactionFailed when something could not be written: all of it is aborted then.
        """
        await self.begin_transaction()
        try:
            yield self
            await self.commit_transaction()
        except BaseException:
            await self._leave_transaction()
            raise

    async def begin_transaction(self) -> None:
        """Begin a transaction. Raises TransactionError inside another, or without `transactional_id`."""
        self._transactional.begin()
        self._choose_way()

    async def commit_transaction(self) -> None:
        """Write everything that was sent, and commit it.

        Raises TransactionFailed when something could not be written: `abort_transaction` is all that is left.
        When the coordinator cannot be reached, it may be called again.
        """
        transactions = self._transactional
        self.quick = False
        if transactions.state.phase is not Phase.COMMITTING:
            transactions.state.to(Phase.FLUSHING, "commit")  # from here on no record is taken
            await self.flush()
        await transactions.commit()

    async def prepare_transaction(self) -> PreparedTransaction:
        """Write everything that was sent, and leave the transaction open for others to end.

        What is returned goes to `end_prepared`, in this process or another; all that is left here is to close
        the producer. Raises TransactionFailed when something could not be written. It is the first of two
        phases, as in KIP-939, but brokers do not hold such a transaction longer than others.
        """
        transactions = self._transactional
        self.quick = False
        transactions.state.to(Phase.FLUSHING, "prepare")
        await self.flush()
        return transactions.prepare()

    async def abort_transaction(self) -> None:
        """Give up everything that was sent since the transaction began."""
        transactions = self._transactional
        transactions.state.to(Phase.ABORTING, "abort")
        self.quick = False
        aborted = TransactionFailed("the transaction was aborted before the record was sent")
        self._unplaced.fail_all(aborted)
        self._sender.drop_unsent(aborted)
        await self.flush()  # what is on its way to a broker must have landed before the end is written
        await transactions.abort()

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        """Commit offsets of a consumer group with the transaction (KIP-98).

        `offsets` are those of the next records to read. `group` is best `consumer.group_metadata()`: then a
        member that has lost its partitions is refused (KIP-447); with a name only it is not.
        """
        metadata = GroupMetadata(group) if isinstance(group, str) else group
        await self._transactional.send_offsets(offsets, metadata)

    send_offsets_to_transaction = send_offsets

    @property
    def _transactional(self) -> Transactions:
        if self._transactions is None:
            raise TransactionError("transactions need a transactional_id: Producer(transactional_id=...)")
        return self._transactions

    def _transactional_side(self) -> Transactions | None:
        config = self.config
        if config.transactional_id is None:
            return None
        timeout_ms = config.transaction_timeout_ms
        return Transactions(
            self._cluster, config.transactional_id, timeout_ms, self.metrics, config.delivery_timeout_ms
        )

    def _lost_unplaced(self, error: BaseException) -> None:
        if self._transactions is not None:
            self._transactions.failed(error)

    async def _start_transactions(self) -> None:
        if self._transactions is None:
            return
        try:
            await self._transactions.start()
        except BaseException:
            await self._cluster.close()
            raise

    async def _leave_transaction(self) -> None:
        """Abort what is open, within a bound: nobody will commit it any more."""
        if self._transactions is None or not self._transactions.state.may_be_aborted:
            return
        try:
            async with asyncio.timeout(LAST_FLUSH_S):
                await self.abort_transaction()
        except (ClientError, KafkaError, TimeoutError) as error:
            # The coordinator aborts it by itself when its time is over.
            log.warning("the transaction of %r was not aborted: %s", self.config.transactional_id, error)

    # --- the slower ways

    @property
    def _is_shown(self) -> bool:
        """Whether an interceptor wants to see every record."""
        return bool(self._on_send or self._on_enqueue or self._on_acknowledgement)

    @property
    def _is_watched(self) -> bool:
        """Whether somebody wants to see every record."""
        return self._is_shown or self._partitioner is not None

    def _refuse_when_shown(self, call: str, instead: str) -> None:
        if self._is_shown:
            raise ClientError(f"{call} takes no interceptors, which it has no records to show: {instead}")

    async def _send_one_by_one(
        self,
        topic: str,
        values: list[object],
        keys: list[object] | None,
        partition: int | None,
        stamps: list[int] | None,
        headers: Headers | None,
    ) -> Acknowledgements:
        """Take many records as `send` takes one, for whoever wants to see each of them."""
        lasting = _lasting(headers or ())
        out = Acknowledgements()
        try:
            for index, value in enumerate(values):
                key = None if keys is None else keys[index]
                stamp = None if stamps is None else stamps[index]
                self._gather(out, await self._send_slowly(topic, value, key, partition, stamp, lasting))
        finally:
            self._let_go(out)
        return out

    def _choosing(self, route: Route) -> Callable[[bytes | None], int] | None:
        """What asks the custom partitioner for a stretch of rows, and tells it of batches that were full."""
        chosen_by, full = self._partitioner, self._told_of_full
        if chosen_by is None:
            return None
        begun = self.gathering.batches_begun

        def choose(key: bytes | None) -> int:
            nonlocal begun
            if full is not None and self.gathering.batches_begun > begun:
                begun = self.gathering.batches_begun
                full(route.topic)
            return chosen_by.partition(route.topic, key, route.count, route.available)

        return choose

    def _choose_way(self) -> None:
        self.quick = (
            self._open
            and not self._is_watched
            and (self._transactions is None or self._transactions.state.takes_records)
            and self.config.key_serializer is None
            and self.config.value_serializer is None
        )

    async def _send_slowly(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> Acknowledgement:
        ready = self._prepared(ProducerRecord(topic, value, key, partition, timestamp_ms, headers or ()))
        route = await self._route(ready.topic)
        await self._room.wait()
        await self._leave_others_their_turn()
        self._refuse_unless_open()
        return self._place_watched(route, ready)

    async def _leave_others_their_turn(self) -> None:
        # Every so many bytes: a loop of sends would never suspend otherwise.
        if self._is_pause_due():
            await asyncio.sleep(0)
            self._pause_later()

    def _send_nowait_slowly(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> Acknowledgement:
        ready = self._prepared(ProducerRecord(topic, value, key, partition, timestamp_ms, headers or ()))
        waiting_bytes = self.gathering.size_bytes + self._unplaced.size_bytes
        if waiting_bytes >= self.config.buffer_memory:
            self.metrics.buffer_exhausted_total += 1
            raise BufferFull(waiting_bytes, self.config.buffer_memory)
        route = self.gathering.routes.get(ready.topic)
        if route is not None:
            return self._place_watched(route, ready)
        self._refuse_illegal(ready.topic)
        assert self._tasks is not None
        if ready.topic not in self._unplaced:
            self._tasks.create_task(self._find_for_waiting(ready.topic))
        waiting = self._unplaced.add(ready)
        self._watch(waiting)  # already: it may never get into a batch
        return waiting

    def _prepared(self, record: ProducerRecord) -> ProducerRecord:
        """The record as interceptors want it, in bytes, of a size that can be sent."""
        self._refuse_unless_open()
        record = _with_lasting_headers(record)
        if self._on_send:
            record = _with_lasting_headers(
                self._interceptors.transform(self._on_send, record, ProducerRecord)
            )
        key, value = self._key(record.topic, record.key), self._value(record.topic, record.value)
        headers = packed_headers(record.headers)
        size = len(key or b"") + len(value or b"") + len(headers or b"") + RECORD_OVERHEAD
        if size > self.gathering.max_record_size:
            raise RecordTooLarge(size, self.gathering.max_record_size)
        if record.timestamp_ms is not None:
            whole_ms(record.timestamp_ms)  # now: it may be placed only when nobody can be told any more
        return record._replace(key=key, value=value)

    def _place_watched(self, route: Route, record: ProducerRecord) -> Acknowledgement:
        sent = self._place(route, record)
        self._watch(sent)
        return sent

    def _place(self, route: Route, record: ProducerRecord) -> Acknowledgement:
        """Queue a prepared record."""
        partition = record.partition
        if partition is None and self._partitioner is not None:
            partition = self._partitioner.partition(route.topic, record.key, route.count, route.available)
        begun = self.gathering.batches_begun
        sent = self._put(
            route, record.key, record.value, partition, record.timestamp_ms, packed_headers(record.headers)
        )
        if self._told_of_full is not None and self.gathering.batches_begun > begun:
            self._told_of_full(route.topic)
        if self._on_enqueue:
            self._interceptors.tell(self._on_enqueue, sent.topic_partition, record)
        return sent

    def _watch(self, sent: Acknowledgement) -> None:
        if self._on_acknowledgement:
            sent.add_done_callback(self._acknowledged)

    def _acknowledged(self, sent: Acknowledgement) -> None:
        error = sent.exception()
        metadata = sent.result() if error is None else None
        self._interceptors.tell(self._on_acknowledgement, metadata, error)

    def _batch_leaves(self, batch: Batch) -> None:
        self._interceptors.tell(self._on_batch, batch.partition, batch.record_count, len(batch.data or b""))

    def _key(self, topic: str, key: Any) -> bytes | None:
        try:
            return None if key is None else _bytes(self._serialize_key(key))
        except Exception as error:
            raise SerializationFailed("key", topic, error) from error

    def _value(self, topic: str, value: Any) -> bytes | None:
        try:
            return None if value is None else _bytes(self._serialize_value(value))
        except Exception as error:
            raise SerializationFailed("value", topic, error) from error

    # --- topics

    async def _route(self, topic: str) -> Route:
        """Return where a topic's records go, asking the cluster at first, for up to `max_block_ms`.

        Where that is 0 it gets the time of one request, since nothing could be sent otherwise.
        """
        found = self.gathering.routes.get(topic)
        if found is not None:
            return found
        self._refuse_when_closed()
        self._refuse_illegal(topic)
        return await self._ask_route(topic)

    @staticmethod
    def _refuse_illegal(topic: str) -> None:
        """Say what is wrong with a name, which no broker has to be asked about."""
        if not isinstance(topic, str):
            raise TypeError(f"a topic is a str, not {type(topic).__name__}")
        reason = why_illegal_topic_name(topic)
        if reason is not None:
            raise error_for(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)

    async def _ask_route(self, topic: str) -> Route:
        bound_ms = self.config.max_block_ms or self.config.client.request_timeout_ms
        timeout_s = FOREVER_S if bound_ms < 0 else bound_ms / 1_000
        return self._learn_route(await self._cluster.topic(topic, may_create=True, timeout_s=timeout_s))

    def _learn_route(self, known: Topic) -> Route:
        led = [index for index, each in sorted(known.partitions.items()) if each.leader >= 0]
        route = self.gathering.route(known.name, len(known.partitions), led)
        # Those that came first are placed first, before whoever called gets on.
        self._unplaced.place(known.name, lambda record: self._place(route, record))
        return route

    def _update_route(self, topic: str) -> None:
        known = self._cluster.known_topic(topic)
        if known is not None:
            self._learn_route(known)

    async def _find_for_waiting(self, topic: str) -> None:
        try:
            await self._ask_route(topic)  # even while the producer closes: what was taken is sent
        except (ClientError, KafkaError) as error:
            self._unplaced.fail(topic, error)

    async def _keep_fresh(self) -> None:
        """Ask for metadata before it is too old to be used, and so find new partitions.

        Topics that nobody sends to any more are forgotten instead.
        """
        while True:
            await asyncio.sleep(self.config.client.metadata_max_age_ms / 1_000 * 0.8)
            self._cluster.forget(*self._forget_idle(self._now_ms() - self.config.metadata_max_idle_ms))
            topics = list(self.gathering.routes)
            try:
                if topics:
                    await self._cluster.refresh(topics)
            except (ClientError, KafkaError):
                continue  # the sender asks again for what it needs
            for topic in topics:
                self._update_route(topic)

    def _refuse_when_closed(self) -> None:
        if not self._open:
            raise ProducerClosed("the producer is not open; use it inside `async with`, or await start()")

    def _refuse_unless_open(self) -> None:
        self._refuse_when_closed()
        if self._transactions is not None and not self._transactions.state.takes_records:
            self._transactions.state.refuse("send records")

    def _available(self) -> int:
        return max(0, self.config.buffer_memory - self.gathering.size_bytes)

    @staticmethod
    def _now_ms() -> float:
        return asyncio.get_running_loop().time() * 1_000


def _with_lasting_headers(record: ProducerRecord) -> ProducerRecord:
    """Headers are looked at more than once, which an iterator does not bear."""
    lasting = _lasting(record.headers)
    return record if lasting is record.headers else record._replace(headers=lasting)


def _lasting(headers: Headers) -> Headers:
    return headers if isinstance(headers, Mapping | list | tuple) else tuple(headers)


def _bytes(made: object) -> bytes | None:
    """What a serializer of an application returns may be anything, and native code takes bytes only."""
    if made is None or type(made) is bytes:
        return made
    if isinstance(made, bytes | bytearray | memoryview):
        return bytes(made)
    raise TypeError(f"the serializer returned {type(made).__name__}, not bytes")


def _refuse_other_lengths(count: int, **columns: Sequence[object] | None) -> None:
    for name, column in columns.items():
        if column is not None and len(column) != count:
            raise ValueError(f"{name} has {len(column)} entries for {count} values")
