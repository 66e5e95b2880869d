"""A real sshd on a port of its own, with keys that are made for it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

SSHD: Final = "/usr/sbin/sshd"
_BOUND_S: Final = 30.0


def missing_sshd() -> str | None:
    """Return what this machine lacks for a server of its own, or None."""
    if not Path(SSHD).exists() or shutil.which("ssh") is None:
        return "needs ssh and its server (Debian: apt-get install openssh-server)"
    return None


class Sshd:
    """A server for this user on all addresses of this machine, while the context is open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("0.0.0.0", 0))
            self.port = int(probe.getsockname()[1])

    @property
    def client_options(self) -> list[str]:
        """Options that ssh needs with -o to get in, whatever the user has configured."""
        known = self._folder / "known_hosts"
        return [
            f"IdentityFile={self._folder / 'client'}", "IdentitiesOnly=yes", f"UserKnownHostsFile={known}",
            "StrictHostKeyChecking=accept-new",
        ]  # fmt: skip

    def __enter__(self) -> Self:
        self._folder.mkdir(0o700)
        for name in ("host", "client"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name)]
            subprocess.run(command, check=True, timeout=60)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        config = self._folder / "sshd_config"
        config.write_text(
            f"Port {self.port}\nListenAddress 0.0.0.0\nHostKey {self._folder / 'host'}\n"
            f"AuthorizedKeysFile {self._folder / 'client.pub'}\nPidFile none\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nPermitRootLogin prohibit-password\n"
        )
        with (self._folder / "sshd.log").open("wb") as output:
            self._process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=output)
        deadline_s = time.monotonic() + _BOUND_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return self
        self._end()
        raise RuntimeError(f"sshd did not start: {(self._folder / 'sshd.log').read_text()[-500:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(_BOUND_S)
