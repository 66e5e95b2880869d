"""Run Apache's ZooKeeper server as a process, with the jars and the Java of this machine."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import IO

from ottla.zookeeper.errors import Unavailable

MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
NEEDED = ("zookeeper", "slf4j-api")
"""Jars that every server needs."""
_NETTY = (
    "netty-buffer", "netty-codec", "netty-common", "netty-handler", "netty-resolver", "netty-transport",
    "netty-transport-classes-epoll", "netty-transport-native-epoll", "netty-transport-native-unix-common",
)  # fmt: skip
WELCOME = ("zookeeper-jute", "metrics-core", "slf4j-simple", "snappy-java", *_NETTY)
"""Servers since 3.5 and 3.6 also need the first two, TLS needs Netty; the others are used when found."""
_VERSION = re.compile(r"-(\d+(?:\.\d+)*)(?:[.-][A-Za-z]\w*)?\.jar\Z")
_PORTS = range(10_000, 32_000)
_MOST_PORTS = 100
_next_port = count(os.getpid() * 1_009)  # processes that start servers at the same time try different ones
_MAVEN_GROUPS = {
    "zookeeper": "org/apache/zookeeper",
    "zookeeper-jute": "org/apache/zookeeper",
    "slf4j-api": "org/slf4j",
    "slf4j-simple": "org/slf4j",
    "metrics-core": "io/dropwizard/metrics",
    "snappy-java": "org/xerial/snappy",
    **dict.fromkeys(_NETTY, "io/netty"),
}


@dataclass(frozen=True, slots=True)
class Installation:
    """A ZooKeeper installation: where it was found, and its class path."""

    source: str
    classpath: str


class NoZooKeeper(Unavailable):
    """This machine has no ZooKeeper server, or no Java."""


def find_installation() -> Installation:
    """Return the first ZooKeeper found: ZOOKEEPER_HOME, Debian's package, Maven's cache, pyspark's jars.

    Raises NoZooKeeper; its one-line message says what to install.
    """
    if shutil.which("java") is None:
        raise NoZooKeeper("", "no java on the PATH (Debian: apt install openjdk-17-jre-headless)")
    for installation in _candidates():
        return installation
    raise NoZooKeeper(
        "",
        "no ZooKeeper found in ZOOKEEPER_HOME, /usr/share/java, ~/.m2 or pyspark; "
        "apt install zookeeper, or use the embedded one",
    )


def _candidates() -> Iterator[Installation]:
    home = os.environ.get("ZOOKEEPER_HOME")
    if home:
        yield from _in_folders(Path(home), Path(home, "lib"), Path(home, "libs"))
    yield from _in_folders(Path("/usr/share/java"))
    yield from _in_maven(Path(os.environ.get("M2_REPOSITORY", Path.home() / ".m2/repository")))
    pyspark = importlib.util.find_spec("pyspark")
    for folder in (pyspark.submodule_search_locations or ()) if pyspark else ():
        yield from _in_folders(Path(folder, "jars"))


def _in_folders(*folders: Path) -> Iterator[Installation]:
    jars = [jar for folder in folders if folder.is_dir() for jar in sorted(folder.glob("*.jar"))]
    found = {name: _newest(jar for jar in jars if _named(jar, name)) for name in (*NEEDED, *WELCOME)}
    yield from _installation(str(folders[-1].parent if len(folders) > 1 else folders[0]), found)


def _in_maven(repository: Path) -> Iterator[Installation]:
    found = {
        name: _newest((repository / group / name).glob(f"*/{name}-*.jar"))
        for name, group in _MAVEN_GROUPS.items()
    }
    yield from _installation(str(repository), found)


def _installation(source: str, found: dict[str, Path | None]) -> Iterator[Installation]:
    if all(found[name] is not None for name in NEEDED):
        yield Installation(source, os.pathsep.join(str(jar) for jar in found.values() if jar is not None))


def _named(jar: Path, name: str) -> bool:
    return jar.name == f"{name}.jar" or (
        jar.name.startswith(f"{name}-") and jar.name[len(name) + 1].isdigit()
    )


def _newest(jars: Iterator[Path]) -> Path | None:
    whole = (jar for jar in jars if not jar.stem.endswith(("-sources", "-javadoc", "-tests")))
    return max(whole, key=_version_of, default=None)


def _version_of(jar: Path) -> tuple[int, ...]:
    match = _VERSION.search(jar.name)
    return tuple(map(int, match[1].split("."))) if match else ()


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is free, and stays so while a server starts that takes it.

    Outgoing connections and binds to port 0 get ports above 32767, so this one is below: a JVM listens
    seconds after its port was chosen, and a server that starts again wants the port that it had. Raises
    OSError.
    """
    for _ in range(_MOST_PORTS):
        port = _PORTS[next(_next_port) % len(_PORTS)]
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                refused = error
            else:
                return port
    raise refused


class RealZooKeeper:
    """A ZooKeeper server in a JVM: started and ready on entering, ended on leaving.

        async with RealZooKeeper(tmp_path / "zk") as zookeeper:
            print(zookeeper.connect_string)

    Session timeouts are clamped to 2 and 20 `tick_ms`. With `members`, the `host:port:port` of each server of
    an ensemble by its number, it is number `my_id` of them and is ready once there is a quorum: start them
    together. `settings` are further lines of `zoo.cfg`, `properties` of the JVM. Raises NoZooKeeper without
    Java or jars, Unavailable when the server does not respond within `start_timeout_s`.
    """

    def __init__(
        self,
        data_dir: Path,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        heap: str = "96m",
        tick_ms: int = 2_000,
        start_timeout_s: float = 30.0,
        output: IO[bytes] | None = None,
        members: Mapping[int, str] | None = None,
        my_id: int = 1,
        settings: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._data_dir = data_dir
        self._heap = heap
        self._tick_ms = tick_ms
        self._start_timeout_s = start_timeout_s
        self._output = output
        self._members = dict(members or {})
        self._my_id = my_id
        self._settings = dict(settings or {})
        self._properties = dict(properties or {})
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> RealZooKeeper:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def connect_string(self) -> str:
        """The address for `zookeeper.connect`."""
        return f"{self.host}:{self.port}"

    @property
    def log_path(self) -> Path:
        """The file of the server's output, unless another was given."""
        return self._data_dir / "zookeeper.out"

    async def start(self) -> None:
        """Start the server and wait until it serves."""
        installation = find_installation()
        self._data_dir.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port(self.host)
        config = self._data_dir / "zoo.cfg"
        config.write_text(self._config())
        (self._data_dir / "myid").write_text(f"{self._my_id}\n")
        flags = [
            f"-Xmx{self._heap}",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dzookeeper.jmx.log4j.disable=true",
            *(f"-D{name}={text}" for name, text in self._properties.items()),
        ]
        command = ["java", *flags, "-cp", installation.classpath, MAIN_CLASS, str(config)]
        if self._output is not None:
            self._process = await self._spawn(command, self._output)
        else:
            with self.log_path.open("ab") as log_file:
                self._process = await self._spawn(command, log_file)
        try:
            await self._wait_until_serving()
        except BaseException:
            await self.stop()
            raise

    async def _spawn(self, command: list[str], output: IO[bytes]) -> asyncio.subprocess.Process:
        # A session of its own, so that Ctrl-C reaches only this process, which then ends the server.
        return await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )

    async def stop(self, timeout_s: float = 5.0) -> None:
        """End the server with SIGTERM, after a timeout with SIGKILL."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            async with asyncio.timeout(timeout_s):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def kill(self) -> None:
        """End the server with SIGKILL, like a crash."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    def pause(self) -> None:
        """Freeze the server with SIGSTOP."""
        assert self._process is not None, "the server is not running"
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        assert self._process is not None, "the server is not running"
        self._process.send_signal(signal.SIGCONT)

    async def wait(self) -> int:
        """Wait until the server ends by itself; return its exit status."""
        assert self._process is not None, "the server is not running"
        return await self._process.wait()

    def _config(self) -> str:
        lines = {
            "dataDir": self._data_dir,
            "clientPort": self.port,
            "clientPortAddress": self.host,
            "tickTime": self._tick_ms,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr,ruok,isro,stat,envi",
            "autopurge.purgeInterval": 24,
        }
        if self._members:
            lines |= {"initLimit": 20, "syncLimit": 10}
            lines |= {f"server.{number}": address for number, address in self._members.items()}
        return "".join(f"{key}={value}\n" for key, value in {**lines, **self._settings}.items())

    async def _wait_until_serving(self) -> None:
        assert self._process is not None
        try:
            async with asyncio.timeout(self._start_timeout_s):
                while not await self._serves():
                    if self._process.returncode is not None:
                        raise Unavailable(self.connect_string, f"ended at once: {self._last_words()}")
                    await asyncio.sleep(0.02)
        except TimeoutError:
            waited = f"did not serve within {self._start_timeout_s:g} s"
            raise Unavailable(self.connect_string, f"{waited}: {self._last_words()}") from None

    async def _serves(self) -> bool:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(self.host, self.port)
            try:
                writer.write(b"srvr")
                return b"Mode:" in await reader.read(4096)
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
        return False

    def _last_words(self) -> str:
        with suppress(OSError):
            return " | ".join(self.log_path.read_text(errors="replace").splitlines()[-3:])
        return "no output"
