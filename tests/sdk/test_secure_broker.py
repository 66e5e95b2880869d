"""A secured broker by one command and by the pytest fixture, with clients of several kinds."""

from __future__ import annotations

import asyncio
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer as LibrdkafkaProducer

from ottla.broker.server.secure_setup import prepare
from ottla.broker.testing import SecureBroker
from ottla.client.cli import main
from ottla.client.errors import AuthenticationFailed, ClientError
from ottla.client.profiles import profile_settings
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.protocol.errors import TopicAuthorizationFailed
from peers.processes import ports_in_a_row
from peers.secured_kafka import started_secure

USERS = {"anna": "annas secret", "josef": "josefs secret"}


def ottla(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--profile", "local"])


async def round_trip(**settings: Any) -> None:
    async with Producer(**settings) as producer:
        await producer.send_and_wait("orders", b"hush")
    reading = settings | {"group_id": "billing", "auto_offset_reset": "earliest"}
    async with asyncio.timeout(60), Consumer("orders", **reading) as consumer:
        assert (await anext(consumer)).value == b"hush"


async def test_from_the_command_to_a_first_message_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = tmp_path / "profiles.toml"
    monkeypatch.setenv("OTTLA_PROFILES", str(profiles))
    monkeypatch.setenv("ANNAS_PASSWORD", USERS["anna"])
    data_dir = tmp_path / "data"

    with started_secure(data_dir, profiles) as said:
        secret = (data_dir / "secure" / "admin.password").read_text().strip()
        assert secret not in said
        assert "librdkafka" in said
        java = data_dir / "secure" / "java.properties"
        listing = ["topic", "list", "--command-config", str(java)]
        listed = await asyncio.to_thread(CliRunner().invoke, main, listing)
        assert listed.exit_code == 0, listed.output
        admin = profile_settings("local")
        await round_trip(**admin)
        for call in (
            ("user", "add", "anna", "--password-env", "ANNAS_PASSWORD"),
            ("acl", "add", "--principal", "User:anna", "--producer", "--topic", "orders"),
            ("acl", "add", "--principal", "User:anna", "--consumer", "--topic", "orders", "--group", "*"),
        ):
            done = await asyncio.to_thread(ottla, *call)
            assert done.exit_code == 0, done.output
        anna = admin | {"sasl_username": "anna", "sasl_password": USERS["anna"]}
        await round_trip(**anna)
        async with Producer(**anna) as producer:
            with pytest.raises(TopicAuthorizationFailed, match="TOPIC 'secrets'"):
                await producer.send_and_wait("secrets", b"x")
        with pytest.raises(AuthenticationFailed, match="refused the login"):
            await Producer(**(anna | {"sasl_password": "wrong"})).start()
        plain: dict[str, Any] = {
            "bootstrap_servers": admin["bootstrap_servers"],
            "bootstrap_timeout_ms": 2_000,
        }
        with pytest.raises(ClientError, match=r"speaks TLS, connect with security\.protocol=SSL or SASL_SSL"):
            await Producer(**plain).start()
        made = await asyncio.to_thread(ottla, "token", "create", "--json")
        assert made.exit_code == 0, made.output

    refused = await asyncio.to_thread(
        CliRunner().invoke, main, ["broker", "start", "--data-dir", str(data_dir)]
    )
    assert refused.exit_code == 1
    assert "start it with --secure, or move " in refused.output

    with started_secure(data_dir, profiles) as said:  # keys and users are those of the first start
        assert said.endswith("Secured: connect with --profile local\n")
        await round_trip(**profile_settings("local"))


async def test_a_cluster_of_three_is_secured_by_one_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTTLA_PROFILES", str(tmp_path / "profiles.toml"))
    data_dir = tmp_path / "cluster"
    command = [str(Path(sys.executable).with_name("ottla")), "cluster"]
    start = [
        "start", "--data-dir", str(data_dir), "--secure", "--detach", "--base-port", str(ports_in_a_row(4)),
    ]  # fmt: skip

    async def run(*arguments: str) -> str:
        done = await asyncio.to_thread(
            subprocess.run, [*command, *arguments], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    said = await run(*start)
    try:
        settings = profile_settings("local")
        created = await asyncio.to_thread(ottla, "topic", "create", "orders", "-r", "3")
        assert created.exit_code == 0, created.output
        await round_trip(**settings)
        password = (data_dir / "secure" / "broker.password").read_text().strip()
        assert (password in said, stat.S_IMODE((data_dir / "broker-1/server.properties").stat().st_mode)) == (
            False, 0o600,
        )  # fmt: skip
    finally:
        await run("stop", "--data-dir", str(data_dir))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--zookeeper", "apache"), "--secure needs --zookeeper embedded"),
        (("--hosts", "hosts.txt"), "--secure is for a cluster on this machine"),
    ],
)
def test_a_cluster_whose_coordinator_could_be_reached_by_others_is_not_secured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hosts.txt").write_text("a\n")

    done = CliRunner().invoke(main, ["cluster", "start", "--data-dir", "cluster", "--secure", *options])

    assert done.exit_code == 2
    assert words in " ".join(done.output.split())


def test_a_plaintext_listener_beside_it_is_refused_in_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        main,
        ["broker", "start", "--data-dir", str(tmp_path), "--listen", "PLAINTEXT://127.0.0.1:0", "--secure"],
    )

    assert done.exit_code == 1
    assert done.output.count("\n") == 1
    assert "listeners must be SASL_SSL://host:port with --secure" in done.output


@pytest.mark.ottla_secure_broker(
    users=USERS,
    acls=[
        ("anna", "WRITE", "topic", "orders"),
        ("anna", "CREATE", "topic", "orders"),
        ("josef", "READ", "topic", "ord*"),
        ("josef", "READ", "group", "billing"),
    ],
)
async def test_users_of_the_fixture_may_do_what_its_rules_allow(ottla_secure_broker: SecureBroker) -> None:
    anna, josef = (ottla_secure_broker.client_settings(user) for user in USERS)

    async with Producer(**anna) as producer:
        await producer.send_and_wait("orders", b"hush")
    async with Producer(**josef, enable_idempotence=False) as producer:
        with pytest.raises(TopicAuthorizationFailed, match="not permitted to WRITE TOPIC 'orders'"):
            await producer.send_and_wait("orders", b"x")
    async with asyncio.timeout(60):
        async with Consumer("orders", group_id="billing", auto_offset_reset="earliest", **josef) as consumer:
            assert (await anext(consumer)).value == b"hush"


def test_librdkafka_logs_in_at_the_fixture(ottla_secure_broker: SecureBroker) -> None:
    failures: list[object] = []
    producer = LibrdkafkaProducer(ottla_secure_broker.librdkafka_settings())

    producer.produce("orders", b"x", on_delivery=lambda error, _: failures.append(error))

    assert producer.flush(60) == 0
    assert failures == [None]


def test_a_profile_of_a_broker_that_is_gone_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = tmp_path / "profiles.toml"
    monkeypatch.setenv("OTTLA_PROFILES", str(profiles))

    for name in ("first", "second"):
        setup = prepare(tmp_path / name, [])
        said = setup.introduce("127.0.0.1:9")
        assert ("local-9" in said) == (name == "second")
    shutil.rmtree(tmp_path / "first")
    third = prepare(tmp_path / "third", []).introduce("127.0.0.1:9")

    assert "local-9" not in third
    assert "third/secure/ca.pem" in profiles.read_text()


def test_keys_that_were_made_before_cost_a_start_no_certificates(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from ottla.broker.server.secure_setup import prepare;"
        f"prepare(Path({str(tmp_path)!r}), []);"
        "print(any(name.startswith('cryptography') for name in sys.modules))"
    )

    said = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]

    assert said == ["True\n", "False\n"]


def test_a_broker_with_a_restart_keeps_its_users(tmp_path: Path) -> None:
    with SecureBroker(tmp_path, users=USERS) as broker:
        began_s = time.monotonic()
        broker.restart()
        assert time.monotonic() - began_s < 60
        settings = broker.client_settings("anna")

        async def log_in() -> None:
            async with Producer(**settings):
                pass

        asyncio.run(log_in())


PROGRAM = """
from ottla.streams import App

app = App("billing", "127.0.0.1:1", auto_offset_reset="earliest")

@app.handle("access-logs")
async def charge(line: bytes):
    print("handles", flush=True)
"""


@pytest.mark.ottla_secure_broker(
    users={"app": "a secret"},
    acls=[
        *(("app", operation, "topic", "access-logs") for operation in ("WRITE", "CREATE", "READ")),
        ("app", "READ", "group", "billing"),
    ],
)
def test_a_sample_is_sent_and_a_streams_app_runs_by_a_profile(
    ottla_secure_broker: SecureBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTTLA_PROFILES", str(tmp_path / "profiles.toml"))
    monkeypatch.setenv("SECRET", "a secret")
    added = CliRunner().invoke(
        main,
        [
            "profile", "add", "local", "-b", ottla_secure_broker.bootstrap_servers, "--security-protocol",
            "SASL_SSL", "--ssl-cafile", str(ottla_secure_broker.cafile), "--sasl-mechanism", "SCRAM-SHA-512",
            "--username", "app", "--password-env", "SECRET",
        ],
    )  # fmt: skip
    assert added.exit_code == 0, added.output

    sent = ottla("pipeline", "sample", "logs", "--count", "100")
    assert sent.exit_code == 0, sent.output
    (tmp_path / "app.py").write_text(PROGRAM)
    command = [sys.executable, "-c", "from ottla.client.cli import main; main()", "streams", "run", "app.py"]
    with subprocess.Popen(
        [*command, "--profile", "local"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            found = process.stdout.readline()
        finally:
            process.terminate()
            said = process.communicate(timeout=60)[1]
    assert found == "handles\n", said
