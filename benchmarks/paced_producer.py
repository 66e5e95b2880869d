"""A producer that writes at a fixed rate and does not take a processor from the broker that it measures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import Producer

_BOUND_S: Final = 600.0


def latencies_ms(
    producer: Producer, topic: str, value: bytes, per_s: float, goes_on: Callable[[int], bool]
) -> list[float]:
    """Write until `goes_on`, given the number of the next record, says no; return how long each record took.

    A record's time runs from when it was due to its acknowledgement. Acknowledgements have a thread of their
    own: `poll` for less than a millisecond does not wait, and a producer that turns until the next record is
    due takes one of the processors.
    """
    took_ms: list[float] = []
    stop = threading.Event()

    def take_acknowledgements() -> None:
        while not stop.is_set():
            producer.poll(0.1)

    thread = threading.Thread(target=take_acknowledgements)
    thread.start()
    try:
        begun, number = time.perf_counter(), 0
        while goes_on(number):
            due = begun + number / per_s
            time.sleep(max(due - time.perf_counter(), 0.0))
            producer.produce(
                topic,
                value,
                on_delivery=lambda *_, due=due: took_ms.append((time.perf_counter() - due) * 1000),
            )
            number += 1
        assert producer.flush(_BOUND_S) == 0
    finally:
        stop.set()
        thread.join(_BOUND_S)
    return took_ms
