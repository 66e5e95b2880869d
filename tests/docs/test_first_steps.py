"""From a clone to the first message in two commands: what `pip install .` brings, and README's block."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from peers.snippets import PRINTED_SERVERS, ROOT, blocks, matches, run_command

COMMON_SET = "import clone_wheels; print(*clone_wheels.common_set('ottla'))"
COMMON = {
    "ottla", "ottla-protocol", "ottla-zookeeper", "ottla-client", "ottla-admin", "ottla-broker",
    "ottla-tools",
    "ottla-producer", "ottla-consumer", "ottla-streams", "ottla-registry",
}  # fmt: skip
MINUTES_S = 1_800  # four modules are compiled, on whatever machine


def test_the_root_brings_the_common_set_of_the_clone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMON_SET],
        cwd=ROOT / "packages", capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    assert {*done.stdout.split()} == COMMON


@pytest.mark.slow
@pytest.mark.timeout(MINUTES_S)
def test_from_a_clone_to_the_first_message_in_two_commands(tmp_path: Path) -> None:
    (block,) = blocks(ROOT / "README.md", "needs clone")
    script, expected = (
        re.findall(r"^\$ (.*)$", block.code, re.MULTILINE),
        re.sub(r"^\$ .*\n", "", block.code, flags=re.MULTILINE),
    )
    assert len(script) == 2
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{free.getsockname()[1]}"
    clone = tmp_path / "ottla"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "OTTLA_LISTENERS": f"PLAINTEXT://{servers}",
        "OTTLA_BOOTSTRAP_SERVER": servers,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    try:
        printed = run_command("\n".join(script), environment, clone, MINUTES_S)
        assert matches(printed, expected.replace(PRINTED_SERVERS, servers)), printed
        read = ".venv/bin/ottla consume letters --from-beginning --max-messages 1"
        assert run_command(read, environment, clone, 60) == "hello\n"
    finally:
        run_command(".venv/bin/ottla broker stop --data-dir ./data", environment, clone, 60)


PRODUCER = blocks(ROOT / "README.md", "needs producer")[0]
FIXTURE_PAGE = ROOT / "docs/tutorial/test-with-a-broker.md"
FIXTURE = blocks(FIXTURE_PAGE, "needs fixture")[0]
BROKER = re.findall(r"`(pip install packages/[^`]+)`", FIXTURE_PAGE.read_text(encoding="utf-8"))[0]
PROVIDED_BY = {"kafka": "kafka-python", "confluent_kafka": "confluent-kafka"}


def installed_with(name: str) -> set[str]:
    """Return the folders of a package and of those of ours that it needs, directly or not."""
    project = tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text())["project"]
    needed = {
        found[1]
        for need in project["dependencies"]
        if (found := re.match(r"ottla-([a-z]+)", need)) is not None
    }
    return {f"packages/{name}"}.union(*map(installed_with, needed))


@pytest.mark.parametrize(("command", "name"), [(PRODUCER.code, "producer"), (BROKER, "broker")])
def test_the_command_for_one_package_names_all_that_it_needs(command: str, name: str) -> None:
    assert set(re.findall(r"packages/\w+", command)) == installed_with(name)


def test_the_tutorial_of_the_fixture_installs_what_its_tests_import() -> None:
    imported = {
        name
        for block in blocks(FIXTURE_PAGE)
        for name in re.findall(r"^(?:from|import) (\w+)", block.code, re.MULTILINE)
        if name not in sys.stdlib_module_names
    }
    installed = set(re.findall(r"[\w-]+", FIXTURE.code.partition("--quiet")[2]))

    assert {PROVIDED_BY.get(name, name) for name in imported} == installed


@pytest.mark.slow
@pytest.mark.timeout(MINUTES_S)
def test_the_producer_alone_is_installed_by_readmes_command(tmp_path: Path) -> None:
    run_in_clone(PRODUCER.code, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(MINUTES_S)
def test_the_tests_of_the_tutorial_run_where_its_commands_were_run(tmp_path: Path) -> None:
    environment = "$ python3 -m venv .venv && . .venv/bin/activate\n"
    clone = run_in_clone(
        f"{environment}$ {BROKER.replace('install', 'install --quiet')}\n{FIXTURE.code}", tmp_path
    )
    project = tmp_path / "project"
    project.mkdir()
    for number, block in enumerate(blocks(FIXTURE_PAGE)):
        (project / f"test_{number}.py").write_text(block.code)
    (project / "pytest.ini").write_text("[pytest]\n")

    done = subprocess.run(
        [clone / ".venv/bin/python", "-m", "pytest", "-q"],
        cwd=project, env=without_our_path(), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr


def run_in_clone(code: str, folder: Path) -> Path:
    """Run the commands of a console block in one shell in a clone, and compare what they print."""
    clone = folder / "ottla"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    script = "\n".join(re.findall(r"^\$ (.*)$", code, re.MULTILINE))
    expected = re.sub(r"^\$ .*\n", "", code, flags=re.MULTILINE)
    printed = run_command(script, without_our_path(), clone, MINUTES_S)
    assert matches(printed, expected), printed
    return clone


def without_our_path() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return environment | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
