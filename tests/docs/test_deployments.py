"""Files of `deploy` for containers, systemd and Kubernetes: they are read, and their commands run here."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from peers.connect_worker import wait_until
from peers.manifests import DEPLOY, PIPELINES, manifests
from peers.snippets import ROOT

WITHIN_S = 60.0
OTTLA = str(Path(sys.executable).with_name("ottla"))


def instructions(name: str) -> list[list[str]]:
    """Return the arguments of all instructions of one name in the Containerfile, in its order."""
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(rf"^{name} +(.*)$", text, re.MULTILINE)
    return [json.loads(words) if words.startswith("[") else words.split() for words in found]


def pod_of(folder: str, name: str) -> dict[str, Any]:
    """Return the pod of a workload."""
    (workload,) = (m for m in manifests(folder) if "template" in m["spec"] and m["metadata"]["name"] == name)
    pod: dict[str, Any] = workload["spec"]["template"]["spec"]
    return pod


def image_environment() -> dict[str, str]:
    pairs = (pair.partition("=") for line in instructions("ENV") for pair in line)
    return {name: value for name, _, value in pairs if name.startswith("OTTLA_")}


def health_check() -> list[str]:
    """Return the command of the image's health check."""
    (line,) = re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", text_of("Containerfile"), re.MULTILINE)
    return list(json.loads(line))


def text_of(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class OnOneMachine:
    """The addresses of containers, each turned into one of this machine."""

    def __init__(self) -> None:
        self._ports: dict[tuple[str, str], int] = {}

    def port(self, container: str, port: str) -> int:
        """Return the port here of a port of a container."""
        return self._ports.setdefault((container, port), free_port())

    def environment(self, container: str, given: Mapping[str, str]) -> dict[str, str]:
        """Return the settings of a container with addresses of this machine."""
        settings = dict(given)
        settings["OTTLA_LISTENERS"] = re.sub(
            r"0\.0\.0\.0:(\d+)",
            lambda found: f"127.0.0.1:{self.port(container, found[1])}",
            given["OTTLA_LISTENERS"],
        )
        # Each advertised address leads to the listener of the same name.
        inside = dict(re.findall(r"(\w+)://[^:]*:(\d+)", given["OTTLA_LISTENERS"]))
        settings["OTTLA_ADVERTISED_LISTENERS"] = re.sub(
            r"(\w+)://[^:,]+:\d+",
            lambda found: f"{found[1]}://127.0.0.1:{self.port(container, inside[found[1]])}",
            given["OTTLA_ADVERTISED_LISTENERS"],
        )
        if "OTTLA_ZOOKEEPER_CONNECT" in given:
            settings["OTTLA_ZOOKEEPER_CONNECT"] = f"127.0.0.1:{self.port('zookeeper', '2181')}"
        if "OTTLA_METRICS_PORT" in given:
            settings["OTTLA_METRICS_HOST"] = "127.0.0.1"
            settings["OTTLA_METRICS_PORT"] = str(self.port(container, given["OTTLA_METRICS_PORT"]))
        return settings


def of_this_machine(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that has these settings of Ottla and no other."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OTTLA_")} | dict(
        settings
    )


@contextmanager
def running(
    command: list[str], settings: Mapping[str, str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command as a container would, with /data in a folder; end it as the engine does."""
    words = [OTTLA, *(word.replace("/data", str(folder)) for word in command)]
    folder.mkdir()
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        process = subprocess.Popen(
            words, env=of_this_machine(settings), stdout=log, stderr=log, cwd=folder.parent
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(getattr(signal, instructions("STOPSIGNAL")[0][0]))
        process.wait(WITHIN_S)


def is_healthy(settings: Mapping[str, str]) -> bool:
    """Run the health check of the image; return whether it succeeds."""
    command = [OTTLA, *health_check()[1:]]
    return (
        subprocess.run(command, env=of_this_machine(settings), capture_output=True, check=False).returncode
        == 0
    )


def zookeeper(machine: OnOneMachine) -> list[str]:
    """Return the command of the embedded server in place of ZooKeeper's image."""
    port = str(machine.port("zookeeper", "2181"))
    return ["zookeeper", "start", "--embedded", "--in-memory", "--port", port]


def composed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text_of(name))
    return found


def entry_command(service: Mapping[str, Any]) -> list[str]:
    """Return what the process of a service is given, after the image's entry point."""
    assert instructions("ENTRYPOINT") == [["ottla"]]
    (default,) = instructions("CMD")
    return [str(word) for word in service.get("command", default)]


def test_the_image_has_no_root_and_its_broker_starts_answers_and_ends_in_order(tmp_path: Path) -> None:
    machine = OnOneMachine()
    settings = machine.environment("image", image_environment())

    with running(entry_command({}), settings, tmp_path / "data") as broker:
        wait_until(lambda: is_healthy(settings))
        broker.send_signal(signal.SIGTERM)
        status = broker.wait(WITHIN_S)

    assert status == 0
    assert not is_healthy(settings)
    assert (tmp_path / "data" / "meta.properties").exists()
    (user,), (volume,) = instructions("USER")[-1], instructions("VOLUME")[0]
    assert user == "10001:10001"
    assert volume == "/data"


def test_the_compose_file_of_one_broker_runs_with_metrics_that_prometheus_reads(tmp_path: Path) -> None:
    file, machine = composed("compose.yaml"), OnOneMachine()
    service = file["services"]["broker"]
    settings = machine.environment("broker", image_environment() | service["environment"])

    with running(entry_command(service), settings, tmp_path / "data"):
        wait_until(lambda: is_healthy(settings))
        with urllib.request.urlopen(
            f"http://127.0.0.1:{machine.port('broker', '9308')}/metrics", timeout=30
        ) as page:
            metrics = page.read().decode()
        servers = f"127.0.0.1:{machine.port('broker', '9092')}"
        made = subprocess.run(
            [OTTLA, "topic", "create", "letters", "-b", servers], capture_output=True, text=True, check=True
        )

    assert made.stdout == "Created topic letters: 1 partition, 1 replica each.\n"
    assert "kafka_server_" in metrics
    check_shared_parts(file, {"broker"})


@pytest.mark.long
def test_the_compose_file_of_three_brokers_runs_a_healthy_cluster(tmp_path: Path) -> None:
    file, machine = composed("compose.three.yaml"), OnOneMachine()
    brokers = {name: service for name, service in file["services"].items() if name.startswith("broker")}
    keeper = zookeeper(machine)
    with ExitStack() as stack:
        stack.enter_context(running(keeper, {}, tmp_path / "zookeeper"))
        for name, service in brokers.items():
            settings = machine.environment(name, image_environment() | service["environment"])
            stack.enter_context(running(entry_command(service), settings, tmp_path / name))
        servers = ",".join(f"127.0.0.1:{machine.port(name, '9092')}" for name in brokers)

        def is_whole() -> bool:
            command = [OTTLA, "cluster", "describe", "--json", "-b", servers]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return done.returncode == 0 and len(json.loads(done.stdout)["brokers"]) == 3

        wait_until(is_whole)
        subprocess.run([OTTLA, "topic", "create", "letters", "-b", servers], check=True, capture_output=True)
        health = subprocess.run(
            [OTTLA, "cluster", "health", "-b", servers], capture_output=True, text=True, check=False
        )

    assert health.stdout == "The cluster is healthy.\n"
    assert {service["environment"]["OTTLA_BROKER_ID"] for service in brokers.values()} == {"1", "2", "3"}
    check_shared_parts(file, {*brokers})


def check_shared_parts(file: Mapping[str, Any], brokers: set[str]) -> None:
    """Check what a compose file refers to: its volumes, the brokers that Prometheus reads, the console."""
    services = file["services"]
    named = {
        volume.partition(":")[0] for service in services.values() for volume in service.get("volumes", ())
    }
    assert {volume for volume in named if not volume.startswith(".")} == set(file["volumes"])
    (job,) = yaml.safe_load(text_of("prometheus.yml"))["scrape_configs"]
    (resolved,) = job["dns_sd_configs"]
    assert brokers <= set(resolved["names"])
    assert {str(resolved["port"])} == {
        services[name]["environment"]["OTTLA_METRICS_PORT"] for name in brokers
    }
    assert set(services["console"]["depends_on"]) == brokers
    published = [port for name in brokers for port in services[name]["ports"]]
    addresses = services["console"]["command"][2].split(",")
    assert sorted(addresses) == sorted(port.rpartition(":")[0] for port in published)
    assert all(
        port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", ())
    )
    command = [OTTLA, *services["console"]["command"], "--help"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_image_has_each_package_that_its_packages_need() -> None:
    (named,) = re.findall(r'^ARG PACKAGES="(.*)"$', text_of("Containerfile"), re.MULTILINE)
    installed = set(named.split())
    projects = {
        name: tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text()) for name in installed
    }

    needed = {
        found[1]
        for project in projects.values()
        for need in project["project"]["dependencies"]
        if (found := re.match(r"ottla-([a-z]+)", need))
    }

    assert needed <= installed
    assert {"broker", "tools", "console"} <= installed
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "!packages" in ignored
    assert instructions("COPY")[0] == [".", "/ottla"]


def test_the_page_shows_the_image_as_it_is() -> None:
    page = (ROOT / "docs" / "howto" / "run-in-containers.md").read_text(encoding="utf-8")

    (shown,) = re.findall(r"^```dockerfile\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)

    assert shown == text_of("Containerfile")


def test_systemd_accepts_the_unit_and_its_command_is_one_of_ours(tmp_path: Path) -> None:
    unit = text_of("ottla-broker.service")
    (command,) = re.findall(r"^ExecStart=/opt/ottla/bin/ottla (.*)$", unit, re.MULTILINE)

    help_shown = subprocess.run(
        [OTTLA, *command.split()[:2], "--help"], capture_output=True, text=True, check=True
    )

    assert command.split()[2] in help_shown.stdout
    assert "\nUser=ottla\n" in unit
    if shutil.which("systemd-analyze") is None:
        return
    copy = tmp_path / "ottla-broker.service"  # with a program that is there
    copy.write_text(unit.replace("/opt/ottla/bin/ottla", OTTLA))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    about_ours = [line for line in verified.stderr.splitlines() if "ottla-broker" in line]
    assert about_ours == []


def test_the_pods_of_brokers_start_with_settings_that_the_broker_takes(tmp_path: Path) -> None:
    (stateful,) = (m for m in manifests() if m["kind"] == "StatefulSet" and m["metadata"]["name"] == "ottla")
    pod = stateful["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    machine = OnOneMachine()
    given = {variable["name"]: str(variable.get("value", "0")) for variable in container["env"]}
    given["OTTLA_ADVERTISED_LISTENERS"] = given["OTTLA_ADVERTISED_LISTENERS"].replace(
        "$(POD_NAME)", "ottla-0"
    )
    settings = machine.environment("ottla-0", image_environment() | given)
    settings["OTTLA_OFFSETS_TOPIC_REPLICATION_FACTOR"] = "1"
    keeper = zookeeper(machine)

    with running(keeper, {}, tmp_path / "zookeeper"), running(container["args"], settings, tmp_path / "data"):
        wait_until(lambda: is_healthy(settings))

    assert container["readinessProbe"]["exec"]["command"] == health_check()
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/data"}


def test_the_pod_of_a_pipeline_runs_a_valid_declaration_that_its_workers_can_follow() -> None:
    pod, worker = pod_of(PIPELINES, "access-logs"), pod_of(PIPELINES, "spark-worker")
    (driver,), (executor,) = pod["containers"], worker["containers"]
    declaration = DEPLOY / PIPELINES / "access-logs.toml"
    settings = tomllib.loads(declaration.read_text(encoding="utf-8"))
    services = {m["metadata"]["name"]: m["spec"] for m in manifests(PIPELINES) if m["kind"] == "Service"}

    checked = subprocess.run(
        [OTTLA, "pipeline", "check", str(declaration)], capture_output=True, text=True, check=False
    )
    shown = subprocess.run([OTTLA, *driver["args"][:2], "--help"], capture_output=True, text=True, check=True)

    assert checked.returncode == 0, checked.stdout
    assert driver["args"][2] == f"/etc/ottla/{declaration.name}"
    assert all(word in shown.stdout for word in driver["args"] if word.startswith("--"))
    spark = settings["spark"]
    assert executor["args"][-1] == spark["master"]
    assert spark["master"].removeprefix("spark://").partition(":")[0] in services
    ports = {port["port"] for port in services[spark["driver"]["host"]]["ports"]}
    assert {spark["driver"]["port"], spark["driver"]["blockManager"]["port"]} <= ports
    shared = {"name": "pipeline", "mountPath": "/pipeline"}
    assert shared in driver["volumeMounts"]
    assert shared in executor["volumeMounts"]
    assert settings["checkpoint"].startswith("/pipeline/")
    assert settings["lake"]["path"].startswith("/pipeline/")
    assert pod["enableServiceLinks"] is worker["enableServiceLinks"] is False


def test_the_image_of_pipelines_has_each_package_that_its_packages_need() -> None:
    text = text_of("Containerfile.pipeline")
    (named,) = re.findall(r'^ARG PACKAGES="(.*)"$', text, re.MULTILINE)
    installed = set(named.split())
    projects = [
        tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text()) for name in installed
    ]

    needed = {
        found[1]
        for project in projects
        for need in project["project"]["dependencies"]
        if (found := re.match(r"ottla-([a-z]+)", need))
    }

    assert needed <= installed
    assert "pipeline" in installed
    assert "SPARK_HOME=" in text
    assert "openjdk" in text
    assert "\nUSER 10001:10001\n" in text
