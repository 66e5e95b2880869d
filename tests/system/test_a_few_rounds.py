"""A few rounds of each long test; sessions such as `nox -s fuzz`, `kill` and `chaos` run them at length."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["fuzz.py", "--frames", "10000"], id="random frames neither stop nor bloat a broker"),
        pytest.param(
            ["fuzz.py", "--attacks", "stranger", "--ignore-times"],
            id="strangers are no followers or controllers",
        ),
        pytest.param(
            ["fuzz.py", "--frames", "3000", "--secure", "before"],
            id="frames before a login let nobody in",
        ),
        pytest.param(
            ["fuzz.py", "--attacks", "tokens without", "--ignore-times"], id="forged tokens let nobody in"
        ),
        pytest.param(
            ["fuzz.py", "--attacks", "updates of keys", "--ignore-times"],
            id="storms of keys neither stop nor bloat a broker",
        ),
        pytest.param(
            ["kill_rounds.py", "--rounds", "5"], id="nothing acknowledged is lost when it is killed"
        ),
        pytest.param(
            ["client_chaos.py", "--rounds", "4", "--seed", "1"],
            id="nothing is lost or doubled where the network between is bad",
        ),
        pytest.param(
            ["streams_chaos.py", "--records", "30000", "--keys", "1000", "--per-s", "1000", "--every-s", "2"],
            id="members of a streams group are killed and each key stays in order",
        ),
        pytest.param(
            [
                "streams_chaos.py",
                "--effect",
                "sqlite",
                "--records",
                "15000",
                "--keys",
                "500",
                "--per-s",
                "700",
                "--every-s",
                "2",
            ],
            id="rows are right though changes are sent again and members are killed",
        ),
        pytest.param(
            ["streams_kills.py", "--rounds", "1", "--load", "0", "--records", "3000"],
            id="one of two members is killed and the other one goes on",
        ),
        pytest.param(
            ["connections.py", "--idle", "300", "--active", "30", "--requests", "5"],
            id="idle connections and busy clients are served at once",
        ),
    ],
)
def test_a_broker_and_its_clients_withstand(command: list[str]) -> None:
    script, *options = command

    done = subprocess.run(
        [sys.executable, str(HERE / script), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=220,
    )

    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].startswith("ok:"), done.stdout
