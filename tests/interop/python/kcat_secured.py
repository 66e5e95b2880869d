"""The cases of `test_secured_clients.py` by kcat: one or two commands for each."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from interop.python.secured_cases import BOUND_S, PAUSE_S, RECORDS, STAY_S, Case, answer, cases

FILES = {
    "cafile": "ssl.ca.location", "certfile": "ssl.certificate.location", "keyfile": "ssl.key.location"
}  # fmt: skip


class Refused(Exception):
    """The lines that kcat printed before it gave up, or while it went on trying."""


def settings_of(case: Case) -> str:
    """Write the settings as a file of kcat, whose arguments everybody could read."""
    settings = {"bootstrap.servers": case["servers"], "security.protocol": case["protocol"]}
    settings |= {FILES[name]: case[name] for name in FILES if name in case}
    if "mechanism" in case:
        settings["sasl.mechanism"] = case["mechanism"]
    if "token" in case:  # kcat takes no token; librdkafka makes one without a signature
        settings["enable.sasl.oauthbearer.unsecure.jwt"] = "true"
        claims = f"principal={case['username']} principalClaimName={case['claim']}"
        settings["sasl.oauthbearer.config"] = claims
    elif "username" in case:
        settings |= {"sasl.username": case["username"], "sasl.password": case["password"]}
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def kcat(case: Case, folder: Path, *arguments: str, text: str = "", pause_s: float = 0) -> str:
    """Run kcat, and write the text to it line by line. Raises Refused with its first error."""
    config = folder / "kcat.config"
    config.write_text(settings_of(case))
    command = ["kcat", "-F", str(config), "-X", "message.timeout.ms=5000", "-m", "10", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdin is not None
        for line in text.splitlines():
            running.stdin.write(f"{line}\n")
            running.stdin.flush()
            time.sleep(pause_s)
        try:
            printed, complaints = running.communicate(timeout=BOUND_S)
        except subprocess.TimeoutExpired:
            running.kill()
            printed, complaints = running.communicate()
            raise Refused(complaints or "kcat says nothing") from None
    if running.returncode or "ERROR" in complaints:
        raise Refused(complaints)
    return printed


def produce(case: Case, folder: Path, number: int, pause_s: float = 0) -> None:
    lines = f"{case['case']}\n" * number
    kcat(case, folder, "-P", "-t", case["topic"], text=lines, pause_s=pause_s)


def consume(case: Case, folder: Path) -> None:
    reads = ("-G", case["group"], "-X", "auto.offset.reset=earliest", "-J", "-e", "-q", case["topic"])
    read = [json.loads(line)["payload"] for line in kcat(case, folder, *reads).splitlines()]
    if read.count(case["case"]) != RECORDS:
        raise Refused(f"read {read}")


def work(case: Case, folder: Path) -> None:
    action = case["do"]
    if action == "stay":
        produce(case, folder, int(STAY_S / PAUSE_S), PAUSE_S)
    if action in ("produce", "round"):
        produce(case, folder, RECORDS)
    if action in ("consume", "round"):
        consume(case, folder)


if __name__ == "__main__":
    for asked in cases():
        answer(asked, lambda: work(asked, Path(sys.argv[1])))  # noqa: B023
