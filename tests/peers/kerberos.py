"""A Kerberos realm for tests: MIT's key distribution centre on a free port, with keytabs of principals."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from peers.processes import Process, free_port

REALM = "OTTLA.TEST"
_TOOLS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "kvno")


def missing_kerberos() -> str | None:
    """Return a message if the key distribution centre is missing, otherwise None."""
    paths = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
    lacking = [tool for tool in _TOOLS if shutil.which(tool, path=paths) is None]
    return "needs MIT Kerberos (Debian: krb5-kdc krb5-admin-server krb5-user)" if lacking else None


class KerberosRealm:
    """A running realm; `environment` makes programs use it, `keytab` adds a principal."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._port = free_port()
        self.configuration = folder / "krb5.conf"
        self._process: Process | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The variables of programs in the realm, Java's included."""
        return {
            "KRB5_CONFIG": str(self.configuration),
            "KRB5_KDC_PROFILE": str(self._folder / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{self._folder / 'no-tickets'}",
            "JDK_JAVA_OPTIONS": f"-Djava.security.krb5.conf={self.configuration}",
        }

    def keytab(self, principal: str, name: str = "") -> Path:
        """Add a principal, and return a file with its key; one that is there gets another key."""
        path = self._folder / f"{name or principal.replace('/', '-')}.keytab"
        self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
        self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {path} {principal}")
        return path

    def ticket_cache(self, principal: str, keytab: Path, service: str, seconds_ahead: int) -> Path:
        """Return a cache with a ticket for a service, whose reader takes its clock for slow by so much."""
        path = self._folder / f"{principal}-{seconds_ahead}.tickets"
        self._run("kinit", "-c", str(path), "-k", "-t", str(keytab), principal)
        self._run("kvno", "-c", str(path), service)
        content = bytearray(path.read_bytes())
        # Version 4 of the format has one field in its header: the seconds by which the clocks differ.
        assert content[:8] == bytes.fromhex("0504000c00010008")
        content[8:12] = struct.pack(">i", seconds_ahead)
        path.write_bytes(content)
        return path

    @contextmanager
    def of_this_process(self) -> Iterator[Self]:
        """Make this process use the realm: Kerberos has no other way to be configured."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            yield self
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value

    def __enter__(self) -> Self:
        self._configure()
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "a master key for tests")
        command = ["krb5kdc", "-n", "-r", REALM]
        variables = [f"{name}={value}" for name, value in self._variables().items()]
        self._process = Process(["env", *variables, *command], self._folder / "kdc.out").start()
        self._process.wait_for_port(self._port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.stop()

    def _configure(self) -> None:
        self.configuration.write_text(
            f"""[libdefaults]
  default_realm = {REALM}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
[realms]
  {REALM} = {{
    kdc = 127.0.0.1:{self._port}
  }}
[domain_realm]
  localhost = {REALM}
"""
        )
        (self._folder / "kdc.conf").write_text(
            f"""[kdcdefaults]
  kdc_listen = 127.0.0.1:{self._port}
  kdc_tcp_listen = 127.0.0.1:{self._port}
[realms]
  {REALM} = {{
    database_name = {self._folder}/principal
    key_stash_file = {self._folder}/stash
    acl_file = {self._folder}/kadm5.acl
  }}
"""
        )

    def _variables(self) -> dict[str, str]:
        return self.environment | {"PATH": os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))}

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command,
            env=os.environ | self._variables(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
