"""One member of the group: an app as users write it, whose processor also writes to the journal."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import signal
import sys
from typing import Any

from streams_effects import WrongRow
from streams_handlers import HANDLERS, Flaky, Poisoned, journal, settings
from streams_journal import Kind
from streams_load import change_of

from ottla.protocol.topics import TopicPartition
from ottla.streams import App
from ottla.streams import app as app_module
from ottla.streams.assembly import HandlerProcessor
from ottla.streams.operating.observer import ProcessorObserver
from ottla.streams.seams import Work

DEAD_LETTERS = "dead-letters"


class _JournalObserver(ProcessorObserver):
    """The observer of an app, which also writes to the journal."""

    def on_assigned(self, partition: TopicPartition, offset: int | None) -> None:
        journal().write(Kind.ASSIGNED, partition.partition, offset or 0)
        super().on_assigned(partition, offset)

    def on_revoked(self, partition: TopicPartition, *, lost: bool) -> None:
        journal().write(Kind.LOST if lost else Kind.REVOKED, partition.partition)
        super().on_revoked(partition, lost=lost)

    def on_set_aside(self, work: Work) -> None:
        for record in work.records:
            change = change_of(record.value)
            journal().write(Kind.SET_ASIDE, record.partition, record.offset, change.key, change.number)
        super().on_set_aside(work)


class _JournalProcessor(HandlerProcessor):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.observer = _JournalObserver(self.config.group_id, now_ms=self._now_ms)


def main() -> None:
    """Run the app until SIGTERM."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("ottla.streams").setLevel(logging.ERROR if "-v" not in sys.argv else logging.INFO)
    logging.getLogger("ottla.streams.processing").setLevel(logging.WARNING)  # what is not committed, and why
    given = settings()
    handler, chosen = HANDLERS[given.effect]
    app = App(
        given.group,
        given.servers,
        group_instance_id=given.static_id,
        session_timeout_ms=3_000,
        heartbeat_interval_ms=300,
        max_poll_interval_ms=40_000,
        drain_timeout_ms=20_000,
        partition_assignment_strategy=given.strategy,
        commit_metadata_max_bytes=given.metadata_bytes,
        retry_backoff_ms=10,
        dead_letter_topic=DEAD_LETTERS,
        on_error={Poisoned: "dead-letter", Flaky: "retry", WrongRow: "stop"},
        **chosen,
    )
    app.handle(given.topic)(handler)

    @app.on_startup
    async def describe_on_demand() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, describe, app)

    app.run()


def describe(app: App) -> None:
    """Print what the processors of an app do: for a run in which nothing is handled any more."""
    for task in asyncio.all_tasks():
        print(task, file=sys.stderr)
    faulthandler.dump_traceback(sys.stderr)
    for running in app._running:
        processor = running._processor
        if processor is None:
            continue
        scheduler, workers, consumer = processor.scheduler, processor._workers, processor.consumer
        print("unfinished", scheduler.unfinished_positions(), scheduler.totals, file=sys.stderr)
        print("parked", scheduler.retried_from(0), scheduler.next_retry_ms(), file=sys.stderr)
        print("running", workers.running(), "of", workers.count, workers.now_ms(), file=sys.stderr)
        print("idle", len(workers._idle), "waking", workers._waking, "busy", workers._busy, file=sys.stderr)
        print("session ends", consumer.session_ends_s, "lease", workers._lease.ends_s, file=sys.stderr)
        print("ready", scheduler.has_ready, "held", processor._rebalancing._held, file=sys.stderr)
        for partition in sorted(consumer.assignment()):
            state = consumer._positions[partition]
            print(partition, state, consumer.lag(partition), consumer.paused(), file=sys.stderr)
    sys.stderr.flush()


if __name__ == "__main__":
    setattr(app_module, "HandlerProcessor", _JournalProcessor)  # noqa: B010 - it is no public seam
    main()
