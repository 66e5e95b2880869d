"""From a clone to the first message in two commands: what `pip install .` brings, and README's block."""

from __future__ import annotations

import email
import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from peers.snippets import PRINTED_SERVERS, ROOT, blocks, matches, run_command

METADATA = (
    "import sys; from hatchling import build; print(build.prepare_metadata_for_build_wheel(sys.argv[1]))"
)
COMMON = {
    "ottla", "ottla-protocol", "ottla-zookeeper", "ottla-client", "ottla-admin", "ottla-broker",
    "ottla-tools",
    "ottla-producer", "ottla-consumer", "ottla-streams",
}  # fmt: skip
MINUTES_S = 1_800  # four modules are compiled, on whatever machine


def test_the_root_brings_the_common_set_from_the_folders_of_the_clone(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", METADATA, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    metadata = email.message_from_string((tmp_path / done.stdout.strip() / "METADATA").read_text())
    required = dict(need.split(" @ ") for need in metadata.get_all("Requires-Dist", []))
    assert set(required) == COMMON
    for name, address in required.items():
        folder = Path(unquote(urlsplit(address).path))
        assert tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"] == name
        assert folder.is_relative_to(ROOT)


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
