"""A provider of OpenID Connect that runs: PyPI's oidc-provider-mock."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from peers.processes import free_port


@contextmanager
def oidc_provider(*people: Mapping[str, object]) -> Iterator[str]:
    """Run a provider that knows people by their claims; return its issuer."""
    port = free_port()
    options = [part for person in people for part in ("--user-claims", json.dumps(person))]
    running = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port), *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert running.stdout is not None
        while "running on" not in (line := running.stdout.readline()):
            assert line, "the provider ended"
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.communicate(timeout=60)
