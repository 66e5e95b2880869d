"""The cases of `test_secured_clients.py` by aiokafka."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.helpers import create_ssl_context

from interop.python.secured_cases import BOUND_S, PAUSE_S, RECORDS, STAY_S, Case, answer, cases


class Provider(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def settings_of(case: Case) -> dict[str, Any]:
    settings: dict[str, Any] = {"bootstrap_servers": case["servers"], "security_protocol": case["protocol"]}
    if "cafile" in case:
        settings["ssl_context"] = create_ssl_context(
            cafile=case["cafile"], certfile=case.get("certfile"), keyfile=case.get("keyfile")
        )
    if "mechanism" in case:
        settings["sasl_mechanism"] = case["mechanism"]
    if "token" in case:
        settings["sasl_oauth_token_provider"] = Provider(case["token"])
    elif "username" in case:
        settings |= {"sasl_plain_username": case["username"], "sasl_plain_password": case["password"]}
    return settings


async def produce(case: Case, number: int, pause_s: float = 0) -> None:
    async with AIOKafkaProducer(**settings_of(case)) as producer:
        for _ in range(number):
            await asyncio.wait_for(producer.send_and_wait(case["topic"], case["case"].encode()), BOUND_S)
            await asyncio.sleep(pause_s)


async def read(consumer: AIOKafkaConsumer, case: Case) -> None:
    count = 0
    while count < RECORDS:
        count += (await consumer.getone()).value == case["case"].encode()


async def consume(case: Case) -> None:
    consumer = AIOKafkaConsumer(
        case["topic"], group_id=case["group"], auto_offset_reset="earliest", enable_auto_commit=False,
        **settings_of(case),
    )  # fmt: skip
    async with consumer:
        await asyncio.wait_for(read(consumer, case), BOUND_S)
        await consumer.commit()


async def work(case: Case) -> None:
    action = case["do"]
    if action == "stay":
        await produce(case, int(STAY_S / PAUSE_S), PAUSE_S)
    if action in ("produce", "round"):
        await produce(case, RECORDS)
    if action in ("consume", "round"):
        await consume(case)


if __name__ == "__main__":
    for asked in cases():
        answer(asked, lambda: asyncio.run(work(asked)))  # noqa: B023
