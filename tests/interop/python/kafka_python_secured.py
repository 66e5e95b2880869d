"""The cases of `test_secured_clients.py` by kafka-python."""

from __future__ import annotations

import importlib
import time
from contextlib import closing
from typing import Any

from kafka import KafkaConsumer, KafkaProducer

from interop.python.secured_cases import BOUND_S, PAUSE_S, RECORDS, STAY_S, Case, answer, bound_s, cases

MODULES_OF_PROVIDERS = ("kafka.net.sasl.oauth", "kafka.sasl.oauth", "kafka.oauth")
"""From the newest release to the oldest."""


def token_provider(token: str) -> Any:
    for name in MODULES_OF_PROVIDERS:
        try:
            base = importlib.import_module(name).AbstractTokenProvider
        except ImportError:
            continue
        return type("Provider", (base,), {"token": lambda self: token})()
    raise ImportError("this release knows no tokens")


def settings_of(case: Case) -> dict[str, Any]:
    settings: dict[str, Any] = {"bootstrap_servers": case["servers"], "security_protocol": case["protocol"]}
    for name in ("cafile", "certfile", "keyfile"):
        if name in case:
            settings[f"ssl_{name}"] = case[name]
    if "bootstrap_timeout_ms" in KafkaProducer.DEFAULT_CONFIG:
        settings["bootstrap_timeout_ms"] = bound_s(case) * 1_000
    if "mechanism" in case:
        settings["sasl_mechanism"] = case["mechanism"]
    if "token" in case:
        settings["sasl_oauth_token_provider"] = token_provider(case["token"])
    elif "username" in case:
        settings |= {"sasl_plain_username": case["username"], "sasl_plain_password": case["password"]}
    return settings


def produce(case: Case, number: int, pause_s: float = 0) -> None:
    # Some releases cannot log in again on a connection: the broker closes it, and they connect again.
    with closing(
        KafkaProducer(retries=5, max_block_ms=bound_s(case) * 1_000, **settings_of(case))
    ) as producer:
        for _ in range(number):
            producer.send(case["topic"], case["case"].encode()).get(BOUND_S)
            time.sleep(pause_s)


def consume(case: Case) -> None:
    with closing(
        KafkaConsumer(
            case["topic"], group_id=case["group"], auto_offset_reset="earliest", enable_auto_commit=False,
            **settings_of(case),
        )
    ) as consumer:  # fmt: skip
        count, deadline = 0, time.monotonic() + bound_s(case)
        while count < RECORDS:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{count} of {RECORDS} records")
            for records in consumer.poll(timeout_ms=500).values():
                count += sum(record.value == case["case"].encode() for record in records)
        consumer.commit()


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
