"""The commands of the manifests for Kubernetes run here: a master, two workers, a pipeline's driver."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest
import yaml

from ottla.broker.testing import BrokerProcess, free_port
from ottla.pipeline.jobs.samples import send_sample
from ottla.pipeline.jobs.state_files import StateFile
from peers.connect_worker import wait_until
from peers.snippets import ROOT

DEPLOY = ROOT / "deploy" / "kubernetes-pipelines"
WITHIN_S = 500
STOP_S = 60
OTTLA = str(Path(sys.executable).with_name("ottla"))


def containers() -> dict[str, dict[str, Any]]:
    """Return the container of each workload, by the workload's name."""
    objects = [found for file in ("spark.yaml", "access-logs.yaml")
               for found in yaml.safe_load_all((DEPLOY / file).read_text(encoding="utf-8"))]  # fmt: skip
    return {
        found["metadata"]["name"]: found["spec"]["template"]["spec"]["containers"][0]
        for found in objects
        if "template" in found["spec"]
    }


class Machine:
    """This machine in place of the pods: their names, ports and folders here."""

    def __init__(self, folder: Path, broker: BrokerProcess) -> None:
        self.folder = folder
        self.master_port = free_port()
        self._here = {
            "spark://spark-master:7077": f"spark://127.0.0.1:{self.master_port}", "spark-master": "127.0.0.1",
            "7077": str(self.master_port), "8080": "0", "$(POD_IP)": "127.0.0.1",
            "brokers:9092": broker.bootstrap_servers,
            'host = "access-logs"': 'host = "127.0.0.1"',
            "/pipeline/": f"{folder}/pipeline/", "7078": str(free_port()), "7079": str(free_port()),
            '"1g"': '"512m"', "0.0.0.0:9466": f"127.0.0.1:{free_port()}",
        }  # fmt: skip

    def of(self, text: str) -> str:
        """Return a text of the manifests as it is here."""
        there = "|".join(map(re.escape, self._here))
        return re.sub(there, lambda found: self._here[found[0]], text)

    @contextmanager
    def running(self, container: Mapping[str, Any], name: str) -> Iterator[None]:
        """Run a container's command; end it as Kubernetes does."""
        folder = self.folder / name
        folder.mkdir()
        words = [self.of(word) for word in (*container["command"], *container["args"])]
        words = [word.replace("/tmp/work", str(folder)) for word in words]
        given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(words, env=environment() | given, stdout=log, stderr=log, cwd=folder)
        try:
            yield
        finally:
            process.terminate()
            process.wait(STOP_S)

    def is_master_there(self) -> bool:
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", self.master_port)) == 0


def environment() -> dict[str, str]:
    """Return the variables of the image: Spark is that of the same Python."""
    home = str(Path(pyspark.__file__).parent)
    own = {"SPARK_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    return {name: value for name, value in os.environ.items() if not name.startswith("OTTLA_")} | own


@pytest.mark.timeout(900)
def test_the_commands_of_the_pods_run_the_pipeline_on_the_workers(tmp_path: Path) -> None:
    pods = containers()
    image = (ROOT / "deploy" / "Containerfile.pipeline").read_text(encoding="utf-8")
    assert re.search(r"^ENTRYPOINT (.*)$", image, re.MULTILINE) is not None
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(tmp_path / "broker"))
        machine = Machine(tmp_path, broker)
        send_sample("logs", broker.bootstrap_servers, None, 1_000)
        declared = tmp_path / "access-logs.toml"
        declared.write_text(machine.of((DEPLOY / declared.name).read_text(encoding="utf-8")))
        stack.enter_context(machine.running(pods["spark-master"], "master"))
        wait_until(machine.is_master_there)
        for number in range(2):
            stack.enter_context(machine.running(pods["spark-worker"], f"worker-{number}"))
        driver = [machine.of(word) for word in pods["access-logs"]["args"]]
        words = [word.replace("/etc/ottla", str(tmp_path)) for word in driver]

        done = subprocess.run(
            [OTTLA, *words, "--once"],
            env=environment(), capture_output=True, text=True, timeout=WITHIN_S, check=False,
        )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    status = StateFile(tmp_path / "pipeline/state/access-logs/status.json").read()
    assert status["queries"]["main"]["counts"] == {"good": 980, "dead": 20}
    assert pq.read_table(tmp_path / "pipeline/lake/access-logs").num_rows == 980
    assert any((tmp_path / f"worker-{number}").glob("app-*") for number in range(2)), "tasks ran on workers"
