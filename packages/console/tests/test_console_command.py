"""`ottla console` as a process: it says where it serves, ends at SIGTERM, and refuses in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess, free_port
from ottla.console.cli import answers_in_clear, clusters, with_broker_here
from ottla.console.settings import clusters_of_profiles


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


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        # The profile of a broker with TLS that once was at this address: another one answers there today.
        (
            '[local]\nbootstrap_servers = "127.0.0.1:9092"\nsecurity_protocol = "SSL"',
            "127.0.0.1:9092 local",
        ),
        ('[mine]\nbootstrap_servers = "localhost:9092"', "mine"),
        ('[away]\nbootstrap_servers = "kafka:9092"', "local away"),
    ],
)
def test_the_broker_on_this_machine_is_shown_beside_profiles_that_do_not_reach_it(
    tmp_path: Path, lines: str, shown: str
) -> None:
    profiles = tmp_path / "profiles.toml"
    profiles.write_text(lines)
    of_profiles = clusters_of_profiles((), profiles)

    found = with_broker_here(of_profiles, lambda _: True)

    assert [cluster.name for cluster in found] == shown.split()
    assert with_broker_here(of_profiles, lambda _: False) == of_profiles


def test_a_broker_answers_in_clear_or_is_not_there(address: str) -> None:
    assert answers_in_clear(address)
    assert not answers_in_clear(f"127.0.0.1:{free_port()}")


def test_the_command_names_the_profiles_that_it_shows(tmp_path: Path) -> None:
    away = f"127.0.0.1:{free_port()}"
    (tmp_path / "profiles.toml").write_text(f'[away]\nbootstrap_servers = "{away}"\n')
    running = subprocess.Popen(
        command("--listen", f"127.0.0.1:{free_port()}"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(tmp_path),
    )  # fmt: skip
    try:
        assert running.stdout is not None
        url = running.stdout.readline().split()[1]
        said = running.stdout.readline()
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(url + "c/away/", timeout=60)
        text = caught.value.read().decode()
    finally:
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=60)

    assert f"profile away ({away})" in said
    assert "ottla profile remove away" in text
    assert str(tmp_path / "profiles.toml") in text
