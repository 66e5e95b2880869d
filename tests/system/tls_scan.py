"""Scan the listener of `--secure` with testssl.sh and sslyze: nothing above LOW, and each LOW is known.

testssl.sh is Debian's package of that name; sslyze is in the environment whose directory is given.

python tests/system/tls_scan.py --sslyze ENVIRONMENT/bin
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ottla.broker.testing import SecureBroker

BOUND_S: Final = 1_800
KNOWN_TO_TESTSSL: Final = {
    "cert_revocation": "a private authority revokes nothing: certificates are exchanged at run time",
    "DNS_CAArecord": "is for public authorities",
}
"""Findings that are accepted, by the beginnings of their names, with the reasons."""
KNOWN_TO_SSLYZE: Final = {
    "maximum_certificate_lifespan": "820 days, of a private authority that a start renews",
    "tls_curves": "P-521 and X448 are stronger than what is asked for; Python cannot choose among curves",
}
SEVERE: Final = ("LOW", "MEDIUM", "HIGH", "CRITICAL")


def testssl_findings(port: int, cafile: Path, folder: Path) -> Iterator[str]:
    """Yield what testssl.sh finds, LOW or above, and is not known."""
    report = folder / "testssl.json"
    command = ["testssl", "--quiet", "--color", "0", "--warnings", "off", "--ip", "one"]
    target = ["--add-ca", str(cafile), "--jsonfile", str(report), f"127.0.0.1:{port}"]
    subprocess.run([*command, *target], stdout=subprocess.DEVNULL, check=False, timeout=BOUND_S)
    found = json.loads(report.read_text())
    print(f"  testssl.sh: {len(found)} checks")
    for finding in found:
        if finding["severity"] == "WARN":  # what a busy machine kept it from checking
            print(f"  not checked: {finding['id']}: {finding['finding'][:200]}")
        elif finding["severity"] in SEVERE:
            reason = _reason(finding["id"], KNOWN_TO_TESTSSL)
            line = f"{finding['severity']} {finding['id']}: {finding['finding'][:200]}"
            print(f"  {line} ({reason or 'NOT KNOWN'})")
            if reason is None:
                yield f"testssl.sh: {line}"


def sslyze_findings(program: Path, port: int, cafile: Path) -> Iterator[str]:
    """Yield what sslyze finds against Mozilla's intermediate configuration, and is not known."""
    command = [str(program / "sslyze"), "--mozilla_config", "intermediate", "--certinfo_ca_file", str(cafile)]
    done = subprocess.run(
        [*command, f"127.0.0.1:{port}"], capture_output=True, text=True, check=False, timeout=BOUND_S
    )
    _, _, verdict = done.stdout.partition("COMPLIANCE AGAINST TLS CONFIGURATION")
    if not verdict:
        yield f"sslyze has no verdict: {done.stdout[-300:]}{done.stderr[-300:]}"
    for line in verdict.splitlines():
        if line.strip().startswith("* "):
            finding = line.strip()[2:]
            reason = _reason(finding, KNOWN_TO_SSLYZE)
            print(f"  sslyze: {finding} ({reason or 'NOT KNOWN'})")
            if reason is None:
                yield f"sslyze: {finding}"
    vulnerable = [line.strip() for line in done.stdout.splitlines() if "VULNERABLE" in line]
    yield from (f"sslyze: {line}" for line in vulnerable)


def _reason(name: str, known: dict[str, str]) -> str | None:
    return next((reason for beginning, reason in known.items() if name.startswith(beginning)), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sslyze", type=Path, required=True)
    options = parser.parse_args()
    if shutil.which("testssl") is None:
        parser.error("testssl is not installed: apt-get install testssl.sh")
    with tempfile.TemporaryDirectory() as name, SecureBroker(name) as broker:
        wrong = [
            *sslyze_findings(options.sslyze, broker.port, broker.cafile),
            *testssl_findings(broker.port, broker.cafile, Path(name)),
        ]
    for line in wrong:
        print(f"  WRONG {line}")
    print("ok: all findings are known" if not wrong else f"{len(wrong)} findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
