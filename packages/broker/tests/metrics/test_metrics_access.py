"""The page of a broker's metrics where other machines can reach it: TLS and a token."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from ottla.broker.config import ConfigError, load_broker_config
from ottla.broker.config.loading import broker_config_from
from ottla.broker.config.metrics import metrics_access_of
from ottla.broker.testing import BrokerFailed, BrokerProcess, BrokerThread
from peers.certificates import Authority, missing_openssl

TOKEN = "t0ken-of-letters-and-digits"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if missing := missing_openssl():
        pytest.skip(missing)
    return Authority(tmp_path_factory.mktemp("authority"))


def secured(authority: Authority, folder: Path) -> dict[str, str]:
    certificate, key = authority.sign("metrics")
    (folder / "metrics.pem").write_text(certificate.read_text() + key.read_text())
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    return {
        "metrics.port": "0",
        "metrics.ssl.keystore.location": str(folder / "metrics.pem"),
        "metrics.token.file": str(folder / "token"),
    }


async def test_metrics_are_read_by_tls_with_the_token(authority: Authority, tmp_path: Path) -> None:
    trusting = ssl.create_default_context(cafile=str(authority.cafile))
    with BrokerThread(tmp_path / "data", secured(authority, tmp_path)) as running:
        assert running.broker is not None
        url = f"https://127.0.0.1:{running.broker.metrics_port}/metrics"

        def read(token: str) -> bytes:
            fields = {"Authorization": f"Bearer {token}"}
            with urlopen(Request(url, headers=fields), timeout=30, context=trusting) as answer:
                return bytes(answer.read())

        assert b"kafka_server_" in await asyncio.to_thread(read, TOKEN)
        with pytest.raises(HTTPError, match="401"):
            await asyncio.to_thread(read, "guessed")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "metrics.example"])
def test_a_page_for_other_machines_without_both_is_refused(host: str) -> None:
    for more in ({}, {"metrics.token.file": "/t"}, {"metrics.ssl.keystore.location": "/k"}):
        with pytest.raises(ConfigError, match=r"^metrics\.host must be a loopback address, not '"):
            load_broker_config({"metrics.host": host, "metrics.port": "9308", **more})
    for fine in (
        {"metrics.port": "9308", "metrics.allow.anonymous": "true"},
        {"metrics.port": "-1"},
        {"metrics.port": "9308", "metrics.token.file": "/t", "metrics.ssl.keystore.location": "/k"},
    ):
        load_broker_config({"metrics.host": host, **fine})


def test_files_of_the_page_that_cannot_be_used_are_one_line(authority: Authority, tmp_path: Path) -> None:
    settings = secured(authority, tmp_path)
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(BrokerFailed) as refused:
        BrokerProcess(tmp_path / "data", settings).start()
    assert "metrics.token.file cannot be used: " in str(refused.value)
    assert "chmod 600 it" in str(refused.value)
    assert "Traceback" not in str(refused.value)

    (tmp_path / "token").chmod(0o600)
    (tmp_path / "metrics.pem").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"^metrics\.ssl\.keystore\.location cannot be used: "):
        metrics_access_of(broker_config_from(settings))


def test_the_password_of_the_key_is_shown_nowhere(tmp_path: Path) -> None:
    config = broker_config_from({"metrics.ssl.key.password": "hunter2"})
    assert "hunter2" not in repr(config)
