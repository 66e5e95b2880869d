"""`ottla clients`, over pages as a broker serves them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from click.testing import CliRunner

from ottla.admin.commands.clients import clients
from ottla.client.page_server import Page, PageServer

CLIENT = {
    "client_id": "orders-1", "user": "User:alice", "software": "apache-kafka-java", "version": "4.4.0",
    "address": "10.0.0.7", "listener": "SASL", "connection": "x", "fetch": None, "request": None,
    "produce": {"rate": 24_112.4, "quota": 50_000.0},
}  # fmt: skip


@pytest.fixture
def url() -> Iterator[str]:
    def answer(path: str) -> Page:
        if path != "/clients":
            return Page(b"no", status=HTTPStatus.NOT_FOUND)
        return Page(json.dumps({"broker": 1, "clients": [CLIENT], "left_out": 3}).encode())

    server = PageServer("127.0.0.1", 0, answer, "clients")
    server.start()
    yield f"http://127.0.0.1:{server.port}"
    server.stop()


def test_each_connection_is_a_row_with_its_rates_beside_their_quotas(url: str) -> None:
    done = CliRunner().invoke(clients, ["--metrics", f"{url}/metrics"])

    assert done.exit_code == 0, done.output
    row = next(line for line in done.output.splitlines() if "orders-1" in line)
    assert row.split() == [
        "1", "orders-1", "apache-kafka-java", "4.4.0", "User:alice", "10.0.0.7", "SASL",
        "24,112", "of", "50,000", "-", "-",
    ]  # fmt: skip
    assert "3 more connections are not shown" in done.output


def test_pages_of_several_brokers_are_one_list_of_json(url: str) -> None:
    done = CliRunner().invoke(clients, ["--metrics", url, "--metrics", url, "--json"])

    assert [page["clients"] for page in json.loads(done.stdout)] == [[CLIENT], [CLIENT]]


def test_a_page_that_is_not_there_is_one_line(url: str) -> None:
    for given, said in (
        (f"{url}/other", "404"),
        ("http://127.0.0.1:1", "/clients cannot be read: [Errno 111] Connection refused. A broker has"),
        ("http://127.0.0.1:port", "/clients cannot be read: nonnumeric port: 'port'. A broker has"),
        ("127.0.0.1:9308", "needs a URL"),
    ):
        done = CliRunner().invoke(clients, ["--metrics", given])

        assert done.exit_code != 0
        assert said in done.output


def test_without_a_page_the_setting_of_the_broker_is_named() -> None:
    done = CliRunner().invoke(clients, [])

    assert done.exit_code == 2
    assert "give --metrics URL. A broker has such a page" in done.output
    assert "--metrics-port 9308" in done.output
