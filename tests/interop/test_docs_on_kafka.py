"""The docs' examples of transactions run on Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.producer import Producer, TransactionFailed
from peers.apache_kafka import ApacheKafka
from peers.certificates import missing_openssl
from peers.secured_kafka import SecuredKafka, secured_kafka
from peers.snippets import ROOT, TRANSACTIONS, pages_with, run_page

pytestmark = pytest.mark.java

TLS = "needs TLS"
EXACTLY_ONCE = ROOT / "docs/tutorial/exactly-once.md"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), heap="512m") as running:
        yield running


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    if missing := missing_openssl():
        pytest.skip(missing)
    with secured_kafka(tmp_path_factory.mktemp("secured"), "kafka-3.9") as running:
        yield running


@pytest.mark.parametrize("page", pages_with(TRANSACTIONS))
def test_what_needs_transactions_works_on_apache_kafka(
    page: Path, kafka: ApacheKafka, tmp_path: Path
) -> None:
    run_page(page, kafka.bootstrap_servers, tmp_path, TRANSACTIONS)


def test_the_loop_of_the_page_loses_nothing_when_a_transaction_is_aborted(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Producer.send_offsets
    aborted: list[object] = []

    async def fails_once(producer: Producer, offsets: Any, group: Any) -> None:
        if not aborted:
            aborted.append(offsets)
            raise TransactionFailed("the first transaction is aborted")
        await given(producer, offsets, group)

    monkeypatch.setattr(Producer, "send_offsets", fails_once)
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), heap="384m") as kafka:
        # The page itself asserts that each record is printed once.
        run_page(EXACTLY_ONCE, kafka.bootstrap_servers, tmp_path, TRANSACTIONS, one_program=True)
    assert aborted


@pytest.mark.parametrize("page", pages_with(TLS))
def test_what_needs_tls_works_on_apache_kafka(
    page: Path, secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ca.pem").write_bytes(secured.cafile.read_bytes())
    run_page(page, secured.at("ENCRYPTED"), tmp_path, TLS, printed="localhost:9093")
