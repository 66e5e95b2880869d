"""Pages of Kafka Connect, with secrets hidden, and changes of connectors; workers that hang or lie."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode

import httpx
import pytest

from ottla.client.config import ClientConfig
from ottla.console.clusters.services import Service
from ottla.console.connect.masking import secrets_of, shown_settings, without_logins, without_secrets
from ottla.console.settings import ClusterSettings
from ottla.console.testing import ORIGIN, serving
from peers.json_service import Answer, Asked, JsonService, json_service

AWAY = "127.0.0.1:1"
HTML = {"origin": ORIGIN, "content-type": "application/x-www-form-urlencoded"}
CONFIG = {
    "name": "orders", "connector.class": "org.example.JdbcSource", "tasks.max": "2",
    "connection.password": "hunter2", "custom.pin": "9876", "ssl.key.password": "${file:/etc/kafka:key}",
    "connection.url": "jdbc:postgresql://josef:s3cret@db/shop?password=hunter4", "topic": "<orders>",
}  # fmt: skip
TRACE = (
    "org.example.Failure: login with hunter2 and 9876 refused\n\tat org.example.Jdbc.connect(Jdbc.java:12)"
)


class SmallWorker:
    """A worker of Connect in memory, with as much of its interface as tests ask for."""

    def __init__(self) -> None:
        self.configs: dict[str, dict[str, str]] = {"orders": CONFIG, "quiet": {"connector.class": "Sink"}}
        self.called: list[str] = []

    def __call__(self, asked: Asked) -> Answer:
        path, _, query = asked.path.partition("?")
        parts = [unquote(part) for part in path.strip("/").split("/")]
        found = self._answer(asked, parts, query)
        if found is None:
            return Answer({"error_code": 404, "message": f"{path} not found"}, 404)
        return found if isinstance(found, Answer) else Answer(found)

    def _answer(self, asked: Asked, parts: list[str], query: str) -> Any:
        match asked.method, parts:
            case "GET", [""]:
                return {"version": "3.9.1", "commit": "abc", "kafka_cluster_id": "id"}
            case "GET", ["connectors"]:
                assert query == "expand=status&expand=info"
                return {
                    name: {"status": self._status(name), "info": {"config": config, "type": "source"}}
                    for name, config in self.configs.items()
                }
            case "GET", ["connectors", name]:
                return {"name": name, "config": self.configs[name]} if name in self.configs else None
            case "GET", ["connectors", name, "status"]:
                return self._status(name)
            case "GET", ["connectors", name, "topics"]:
                return {name: {"topics": ["orders", "<b>"]}}
            case "GET", ["connectors", name, "offsets"]:
                return {"offsets": [{"partition": {"table": "o"}, "offset": {"id": 2**53 + 1}}]}
            case "GET", ["connector-plugins", "JdbcSource", "config"]:
                return [{"name": "custom.pin", "type": "PASSWORD"}, {"name": "topic", "type": "STRING"}]
            case "PUT", ["connector-plugins", _, "config", "validate"]:
                password = asked.body.get("connection.password", "")
                errors = [] if asked.body.get("tasks.max", "1") != "many" else [f"no number ({password})"]
                return {"configs": [{"value": {"name": "tasks.max", "errors": errors}}]}
            case "PUT", ["connectors", "broken", "config"]:
                return Answer({"error_code": 400, "message": f"refused: {asked.body}"}, 400)
            case "PUT", ["connectors", name, "config"]:
                self.configs[name] = asked.body
                return {"name": name}
            case (("PUT" | "POST" | "DELETE"), ["connectors", *_]):
                self.called.append(f"{asked.method} {asked.path}")
                return Answer(status=202)
        return None

    def _status(self, name: str) -> dict[str, Any]:
        if name == "quiet":
            return {"connector": {"state": "PAUSED", "worker_id": "w:1"}, "tasks": []}
        failed = {"id": 1, "state": "FAILED", "worker_id": "w:1", "trace": TRACE}
        tasks = [failed, {"id": 0, "state": "RUNNING", "worker_id": "w:2"}]
        return {"connector": {"state": "RUNNING", "worker_id": "w:1"}, "tasks": tasks}


@pytest.fixture
def worker() -> SmallWorker:
    return SmallWorker()


@pytest.fixture
async def console(worker: SmallWorker, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        json_service(worker) as service,
        serving(cluster(service), allows_changes=True, audit=tmp_path / "audit.jsonl") as client,
    ):
        yield client


def cluster(*services: JsonService) -> ClusterSettings:
    connects = tuple(Service(f"etl{index}", (service.url,)) for index, service in enumerate(services))
    return ClusterSettings("local", AWAY, ClientConfig, None, connects)


async def test_connectors_are_listed_with_those_that_failed_first(console: httpx.AsyncClient) -> None:
    listed = (await console.get("/c/local/connect")).text
    failed = (await console.get("/c/local/connect?state=FAILED")).text
    searched = (await console.get("/c/local/connect?q=SINK")).text

    assert listed.index("name=orders") < listed.index("name=quiet")
    assert "1 of 2 failed" in listed
    assert "1 connector has failures" in listed
    assert "version 3.9.1" in listed
    assert "name=quiet" not in failed
    assert "name=orders" not in searched


async def test_a_connector_is_shown_with_its_failure_and_without_its_secrets(
    console: httpx.AsyncClient,
) -> None:
    shown = (await console.get("/c/local/connect/connector?connect=etl0&name=orders")).text

    assert "org.example.Failure: login with hidden and hidden refused" in shown
    assert "at org.example.Jdbc.connect" in shown
    for secret in ("hunter2", "hunter4", "9876", "s3cret"):
        assert secret not in shown
    assert "${file:/etc/kafka:key}" in shown
    assert "from file" in shown
    assert "&lt;orders&gt;" in shown
    assert str(2**53 + 1) in shown
    assert "/topics/%3Cb%3E" in shown
    assert (await console.get("/c/local/connect/connector?connect=etl0&name=no")).status_code == 404
    assert (await console.get("/c/local/connect/connector?connect=no&name=no")).status_code == 404


async def do(console: httpx.AsyncClient, change: str, typed: str = "", **form: str) -> str:
    """Send the form of a change, with the token that this browser has."""
    page = (await console.get("/c/local/change/pause-connector?connect=etl0&name=quiet")).text
    token = re.search(r'name="token" value="(\w+)"', page)
    assert token is not None
    content = urlencode({"connect": "etl0", "name": "orders", **form, "typed": typed, "token": token[1]})
    return (await console.post(f"/c/local/change/{change}", content=content, headers=HTML)).text


@pytest.mark.parametrize(
    ("change", "form", "called"),
    [
        ("pause-connector", {}, "PUT /connectors/orders/pause"),
        ("resume-connector", {}, "PUT /connectors/orders/resume"),
        ("stop-connector", {}, "PUT /connectors/orders/stop"),
        ("restart-task", {"task": "1"}, "POST /connectors/orders/tasks/1/restart"),
        (
            "restart-connector",
            {"parts": "the connector"},
            "POST /connectors/orders/restart?includeTasks=false&onlyFailed=false",
        ),
        (
            "restart-connector",
            {"parts": "that which failed of both"},
            "POST /connectors/orders/restart?includeTasks=true&onlyFailed=true",
        ),
        ("delete-connector", {"typed": "orders"}, "DELETE /connectors/orders"),
    ],
)
async def test_a_connector_is_changed_as_its_preview_said(
    console: httpx.AsyncClient, worker: SmallWorker, change: str, form: dict[str, str], called: str
) -> None:
    query = urlencode({"connect": "etl0", "name": "orders", **form})
    shown = (await console.get(f"/c/local/change/{change}?{query}")).text
    done = await do(console, change, **form)

    assert "What will happen" in shown
    assert "FAILED" in shown or "the connector" in form.values()
    assert "Done" in done
    assert worker.called == [called]


async def test_changes_that_make_no_sense_are_refused(
    console: httpx.AsyncClient, worker: SmallWorker
) -> None:
    untyped = await do(console, "delete-connector")
    no_task = await do(console, "restart-task", task="7")
    unfailed = await do(console, "restart-connector", name="quiet", parts="that which failed of both")
    faulty = await do(console, "set-connector-setting", key="tasks.max", value="many")
    masked = await do(console, "set-connector-setting", key="connection.password", value="hidden")

    assert "type orders to confirm" in untyped
    assert "orders has no task 7" in no_task
    assert "nothing of it has failed" in unfailed
    assert "tasks.max: no number (hidden)" in faulty
    assert "type the value itself" in masked
    assert worker.called == []
    assert worker.configs["orders"] == CONFIG


async def test_settings_change_and_connectors_are_created_with_secrets_in_no_log(
    console: httpx.AsyncClient, worker: SmallWorker, tmp_path: Path
) -> None:
    changed = await do(console, "set-connector-setting", key="connection.password", value="new-hunter")
    taken = await do(console, "set-connector-setting", key="topic", value="")
    text = json.dumps({"connector.class": "JdbcSource", "tasks.max": 3, "api.key": "new-hunter"})
    created = await do(console, "create-connector", name="fresh", config=text)
    lines = await do(console, "create-connector", name="lines", config="connector.class=Sink\na.b=c=d")
    broken = await do(console, "create-connector", name="broken", config=text)
    there = await do(console, "create-connector", name="orders", config=text)

    assert "connection.password of orders is changed." in changed
    assert "topic of orders is taken away." in taken
    assert worker.configs["orders"]["connection.password"] == "new-hunter"
    assert "topic" not in worker.configs["orders"]
    assert "Connector fresh is created." in created
    assert worker.configs["fresh"]["tasks.max"] == "3"
    assert worker.configs["lines"] == {"connector.class": "Sink", "a.b": "c=d", "name": "lines"}
    assert "Done" in lines
    assert "there is a connector orders already" in there
    assert "refuses (400): refused" in broken
    assert "new-hunter" not in (tmp_path / "audit.jsonl").read_text()


async def test_a_worker_that_hangs_lies_or_ends_is_named_and_the_others_are_shown() -> None:
    lie = Answer({"orders": {"status": {"connector": "no state"}}})
    async with (
        json_service(SmallWorker()) as good,
        json_service(lambda _: lie) as lying,
        json_service(lambda _: Answer(raw=b"HTTP/1.1 200 -\r\ncontent-length: 9\r\n\r\n{")) as ending,
        serving(cluster(good, lying, ending)) as console,
    ):
        listed = await console.get("/c/local/connect")
        one = await console.get("/c/local/connect/connector?connect=etl2&name=orders")

    assert listed.status_code == one.status_code == 200
    assert "name=orders" in listed.text
    assert f"the Connect cluster etl1 at {lying.url} answers something else" in listed.text
    assert f"the Connect cluster etl2 at {ending.url} gave no answer" in listed.text
    assert "gave no answer" in one.text


def test_settings_are_hidden_by_their_names_their_classes_and_their_values() -> None:
    config = {
        "database.password": "a", "aws.secret.access.key": "b", "sasl.jaas.config": "c", "auth.token": "d",
        "basic.auth.user.info": "u:p", "pin": "e", "ssl.keystore.location": "/k", "key.converter": "K",
        "http.headers": "Authorization: token=abc", "empty.password": "", "db.password": "${vault:x:y}",
        "mixed.password": "x${vault:x:y}", "url": "https://u:p@host/", "number": 5,
    }  # fmt: skip

    shown = {setting.name: setting for setting in shown_settings(config, {"pin"})}

    assert {name for name, setting in shown.items() if setting.is_hidden} == {
        "database.password", "aws.secret.access.key", "sasl.jaas.config", "auth.token",
        "basic.auth.user.info", "pin", "mixed.password",
    }  # fmt: skip
    assert shown["http.headers"].value == "Authorization: token=hidden"
    assert (shown["db.password"].value, shown["db.password"].providers) == ("${vault:x:y}", ("vault",))
    assert shown["url"].value == "https://u:hidden@host/"
    assert without_logins("a://b/?pwd='x y'&z=1") == "a://b/?pwd=hidden&z=1"
    assert without_secrets("long-secret, ab", {"long-secret", "ab"}) == "hidden, ab"
    assert "e" in secrets_of(config, {"pin"})
