"""A cluster of `ottla cluster start` loses one part after another, and serves each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[1] / "system" / "cluster_acceptance.py"

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


def test_a_cluster_serves_without_any_broker_its_controller_or_zookeepers_leader() -> None:
    # Sessions of 3 s make it short; the bounds are for a machine that does nothing else.
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--session-s", "3", "--slack-s", "40"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
