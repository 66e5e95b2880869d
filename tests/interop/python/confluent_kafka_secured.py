"""The cases of `test_secured_clients.py` by confluent-kafka: librdkafka reports errors beside its calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer

from interop.python.secured_cases import BOUND_S, PAUSE_S, RECORDS, STAY_S, Case, answer, cases

FILES = {
    "cafile": "ssl.ca.location", "certfile": "ssl.certificate.location", "keyfile": "ssl.key.location"
}  # fmt: skip
FATAL = (KafkaError._AUTHENTICATION, KafkaError._SSL)


class Refused(Exception):
    """An error of librdkafka, by its name."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(f"{error.name()} {error.str()}")


class Errors:
    """The errors that librdkafka reports by itself; it goes on trying after each."""

    def __init__(self) -> None:
        self.first: KafkaError | None = None

    def add(self, error: KafkaError | None) -> None:
        if error is not None and self.first is None:
            self.first = error

    def add_fatal(self, error: KafkaError) -> None:
        if error.code() in FATAL:
            self.add(error)

    def check(self) -> None:
        if self.first is not None:
            raise Refused(self.first)


def settings_of(case: Case, errors: Errors) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": case["servers"],
        "security.protocol": case["protocol"],
        "error_cb": errors.add_fatal,
        "log_level": 0,
    }
    settings.update({FILES[name]: case[name] for name in FILES if name in case})
    if "mechanism" in case:
        settings["sasl.mechanism"] = case["mechanism"]
    if "token" in case:
        settings["oauth_cb"] = lambda _: (case["token"], time.time() + 600)
    elif "username" in case:
        settings.update({"sasl.username": case["username"], "sasl.password": case["password"]})
    return settings


def until(done: Callable[[], bool], errors: Errors, poll: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError("librdkafka reports no error")
        poll()
        errors.check()


def produce(case: Case, number: int, pause_s: float = 0) -> None:
    errors, delivered = Errors(), []

    def report(error: KafkaError | None, message: Any) -> None:
        errors.add(error)
        delivered.append(message)

    producer = Producer(settings_of(case, errors))
    for wanted in range(1, number + 1):
        producer.produce(case["topic"], case["case"], on_delivery=report)
        until(lambda: len(delivered) >= wanted, errors, lambda: producer.poll(0.1))  # noqa: B023
        time.sleep(pause_s)


def consume(case: Case) -> None:
    errors = Errors()
    group = {"group.id": case["group"], "auto.offset.reset": "earliest", "enable.auto.commit": False}
    with closing(Consumer({**settings_of(case, errors), **group})) as consumer:
        consumer.subscribe([case["topic"]])
        found: list[Any] = []

        def poll() -> None:
            message = consumer.poll(0.2)
            if message is None:
                return
            errors.add(message.error())
            if message.error() is None and message.value() == case["case"].encode():
                found.append(message)

        until(lambda: len(found) >= RECORDS, errors, poll)
        consumer.commit(asynchronous=False)


def work(case: Case) -> None:
    action = case["do"]
    if action == "stay":
        produce(case, int(STAY_S / PAUSE_S), PAUSE_S)
    if action in ("produce", "round"):
        produce(case, RECORDS)
    if action in ("consume", "round"):
        consume(case)


if __name__ == "__main__":
    for asked in cases():
        answer(asked, lambda: work(asked))  # noqa: B023
