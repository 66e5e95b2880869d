"""The clients and streams in a process that lacks what only POSIX has, as on Windows."""

from __future__ import annotations

import subprocess
import sys

from peers.snippets import PRINTED_SERVERS, ROOT, blocks

WITHOUT_POSIX = """
import asyncio, builtins, importlib, logging, multiprocessing, os, pkgutil, random, signal, ssl, subprocess
import sys, tempfile, threading
import click, numpy  # the standard library and the libraries have their own ways on Windows

MODULES = (
    "crypt curses fcntl grp nis posix pty pwd readline resource syslog termios tty uvloop"
).split()
FUNCTIONS = (
    "chown chroot fchdir fchmod fchown fdatasync fork forkpty getegid geteuid getgid getgroups getloadavg "
    "getpgid getpgrp getpriority getuid killpg lchown lockf memfd_create mkfifo mknod nice openpty "
    "posix_fadvise posix_spawn pread preadv pwrite pwritev register_at_fork sched_getaffinity "
    "sched_yield sendfile setpgid setpriority setsid statvfs sync sysconf uname wait wait3 "
    "O_CLOEXEC O_DIRECTORY O_DSYNC O_NOFOLLOW O_NONBLOCK O_SYNC"
)
SIGNALS = (
    "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGUSR1 SIGUSR2 SIGXCPU alarm setitimer"
)

really_import = builtins.__import__

def import_without_posix(name, globals=None, locals=None, fromlist=(), level=0):
    if name.partition(".")[0] in MODULES and (globals or {}).get("__name__", "").startswith("ottla"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return really_import(name, globals, locals, fromlist, level)

class WindowsLoop(asyncio.SelectorEventLoop):
    def refuse(self, *_):
        raise NotImplementedError

    add_signal_handler = remove_signal_handler = add_reader = add_writer = refuse

class Policy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = WindowsLoop

builtins.__import__ = import_without_posix
loop_factory = WindowsLoop
"""

LACKS = """
for module, names in ((os, FUNCTIONS), (signal, SIGNALS)):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
"""

IMPORTS = """
for package in ("protocol", "client", "admin", "producer", "consumer", "streams", "registry", "zookeeper"):
    root = importlib.import_module(f"ottla.{package}")
    for found in pkgutil.walk_packages(root.__path__, f"ottla.{package}."):
        if not found.name.endswith("__main__") and not found.name.startswith("ottla.client.admin"):
            importlib.import_module(found.name)
print(sum(name.startswith("ottla.") for name in sys.modules))
"""

ROUND_TRIP = """
from ottla.admin import Admin
from ottla.consumer import Consumer
from ottla.consumer.sync import SyncConsumer
from ottla.producer import Producer
from ottla.streams import Processor

async def main(servers):
    async with Admin(servers) as admin:
        await admin.topics.create("letters", partitions=2)
    async with Producer(bootstrap_servers=servers, compression_type="lz4") as producer:
        for number in range(100):
            await producer.send("letters", b"%d" % number, key=b"%d" % (number % 7))
        await producer.flush()
    async with Consumer(
        "letters", bootstrap_servers=servers, group_id="readers", auto_offset_reset="earliest"
    ) as consumer:
        read = [await anext(consumer) for _ in range(100)]
        await consumer.commit()
    handled, enough = [], asyncio.Event()

    async def handle(record):
        handled.append(record.value)
        if len(handled) == 100:
            enough.set()

    async with Processor(
        handle, "letters", bootstrap_servers=servers, group_id="workers", auto_offset_reset="earliest"
    ):
        await asyncio.wait_for(enough.wait(), 60)
    print(len({record.value for record in read}), len({*handled}))

def read_on_a_thread(servers):
    with SyncConsumer("letters", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        print(len([next(consumer) for _ in range(100)]))

with asyncio.Runner(loop_factory=loop_factory) as runner:
    runner.run(main(sys.argv[1]))
asyncio.set_event_loop_policy(Policy())
read_on_a_thread(sys.argv[1])
"""


def run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_module_of_the_clients_is_imported_without_posix() -> None:
    count = int(run(WITHOUT_POSIX + LACKS + IMPORTS))

    assert count > 300


def test_records_make_the_round_trip_without_posix(cluster: object) -> None:
    printed = run(WITHOUT_POSIX + LACKS + ROUND_TRIP, cluster.bootstrap_servers)  # type: ignore[attr-defined]

    assert printed.split() == ["100", "100", "100"]


def test_the_program_of_the_page_about_windows_runs_without_posix(cluster: object) -> None:
    servers = cluster.bootstrap_servers  # type: ignore[attr-defined]
    (shown,) = [
        block for block in blocks(ROOT / "docs/howto/use-on-windows.md") if block.language == "python"
    ]
    program = shown.code.replace(PRINTED_SERVERS, servers)

    printed = run(f"{WITHOUT_POSIX}{LACKS}asyncio.set_event_loop_policy(Policy())\n{program}")

    assert printed == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]\n"
