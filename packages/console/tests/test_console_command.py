"""`ottla console` as a process: it says where it serves, ends at SIGTERM, and refuses in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess, free_port
from ottla.console.cli import clusters


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from ottla.client.cli import main; main()", "console", *arguments]


def environment(home: Path) -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTTLA", "XDG"))}
    return {**kept, "HOME": str(home), "OTTLA_PROFILES": str(home / "profiles.toml"), "PYTHONUNBUFFERED": "1"}


def test_it_says_where_it_serves_and_ends_with_its_history_kept(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        running = subprocess.Popen(
            command("--bootstrap-server", f"127.0.0.1:{broker.port}", "--listen", f"127.0.0.1:{free_port()}"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(tmp_path),
        )  # fmt: skip
        try:
            assert running.stdout is not None
            said = running.stdout.readline()
            url = said.split()[1]
            with urllib.request.urlopen(url + "c/local/", timeout=60) as answer:
                text = answer.read().decode()
        finally:
            running.send_signal(signal.SIGTERM)
            _, errors = running.communicate(timeout=60)

    assert said == f"Open {url} (Ctrl-C ends the console).\n"
    assert "No problem found" in text
    assert "Traceback" not in errors
    assert (tmp_path / ".local/state/ottla/console.sqlite").exists()


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["--listen", "0.0.0.0:8180"], "or 127.0.0.1 and a tunnel (ssh -L)"),
        (["--behind-proxy", "10.0.0.1"], "a proxy brings requests of other machines: it needs --logins"),
        (["--behind-proxy", "proxy.example"], "--behind-proxy takes an address or a network"),
        (["--base-path", "kafka/"], "must be a path such as /kafka"),
        (["--tls-key", __file__], "--tls-key needs --tls-certificate"),
        (["--tls-certificate", __file__], "must hold a certificate and its key in PEM"),
        (["--profile", "nowhere"], "has no profile 'nowhere'"),
        (["--listen", "nonsense"], "nonsense"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(
    tmp_path: Path, arguments: list[str], advice: str
) -> None:
    done = subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(tmp_path),
    )

    assert done.returncode == 2
    assert advice in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_an_address_in_use_is_named_with_the_way_out(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        done = subprocess.run(
            command("--listen", f"127.0.0.1:{broker.port}"), capture_output=True, text=True, timeout=60,
            check=False, env=environment(tmp_path),
        )  # fmt: skip

    assert done.returncode == 2
    assert "--listen names another" in done.stderr


def test_a_profile_named_local_stands_beside_the_broker_that_the_command_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = tmp_path / "profiles.toml"
    profiles.write_text('[local]\nbootstrap_servers = "kafka:9092"\n[other]\nbootstrap_servers = "o:9092"\n')
    monkeypatch.setenv("OTTLA_PROFILES", str(profiles))

    found = clusters(("local", "other"), "b:9092")
    assert [(cluster.name, cluster.bootstrap_servers) for cluster in found] == [
        ("b:9092", "b:9092"), ("local", "kafka:9092"), ("other", "o:9092"),
    ]  # fmt: skip
    assert [cluster.name for cluster in clusters(("other",), "b:9092")] == ["local", "other"]
