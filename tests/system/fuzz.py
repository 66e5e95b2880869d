"""A million structured frames against a broker: it must survive, stay small and keep acknowledged records.

Frames of every served API are sent over several connections: valid ones with unusual contents, truncated
ones, flipped bits, unknown keys, wrong sizes. Meanwhile a canary produces through an ordinary client and must
find its records at the end. Then the new topics and groups are deleted, and the broker's memory must return
to its initial size, within 16 MiB.

python tests/system/fuzz.py --frames 1000000

With `--secure before` the frames are those of clients that do not log in, with `--secure after` those of
logged-in clients: half of a user without rights, half of one with all. Half of each goes to a SASL_SSL and
half to a SASL_PLAINTEXT listener. With `--attacks` it runs the attacks of `attacks.py`,
`group_attacks.py`, `login_attacks.py` and the like, each by its name, and shows their costs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import attack_costs
from confluent_kafka.admin import AdminClient
from fuzz_clients import (
    CANARY,
    Attack,
    Canary,
    canary_quotas,
    clean_up,
    clean_up_security,
    resident_mib,
    served_apis,
    troubles,
)
from random_frames import OF_SECURITY, STRINGS, RandomFrames, RandomLogins, sized
from secured_broker import ADMIN, PASSWORDS, SecuredBroker, plain

from ottla.broker.testing import BrokerProcess
from ottla.protocol.api import RequestHeader, encode_request
from ottla.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

ALLOWED_GROWTH_MIB = 16
SETTINGS = {
    "max.partitions.per.topic": "4",
    "group.max.session.timeout.ms": "1000",
    "log.segment.delete.delay.ms": "500",
    "log.segment.bytes": "10000000",
    "socket.request.max.bytes": "1000000",
    "producer.id.expiration.ms": "1000",
    "producer.id.expiration.check.interval.ms": "1000",
}
OF_LOGINS = {
    "connection.failed.authentication.delay.ms": "10",
    "delegation.token.max.lifetime.ms": "2000",
    "delegation.token.expiry.time.ms": "2000",
    "delegation.token.expiry.check.interval.ms": "1000",
}
ATTACKS = (
    "attacks",
    "group_attacks",
    "handshake_attacks",
    "login_attacks",
    "share_attacks",
    "telemetry_attacks",
)
"""Modules that register theirs."""
LISTENERS = ("SASL_SSL", "SASL_PLAINTEXT")

Throw = Callable[[int], None]
"""Sends the frames of one number."""


def throw_all(broker: BrokerProcess, throw: Throw, count: int, canary: Canary) -> None:
    """Send frames, with the canary between them; print the rate and the memory."""
    begun = time.perf_counter()
    for number in range(count):
        throw(number)
        if number % 5000 == 0:
            canary.sing()
        if number and number % 100_000 == 0:
            rate = number / (time.perf_counter() - begun)
            print(f"  {number:>9,} frames  {rate:,.0f}/s  {resident_mib(broker.pid):.0f} MiB", flush=True)


def attack(broker: BrokerProcess, frames: RandomFrames, count: int, canary: Canary) -> int:
    """Send random frames to a broker without logins; return the number of connections."""
    lanes = Attack(broker.port)
    throw_all(broker, lambda number: lanes.throw(number, frames.frame()), count, canary)
    lanes.close()
    return lanes.reconnects


def run(folder: Path, count: int, seed: int) -> list[str]:
    """Send random frames to a broker without logins; return what went wrong."""
    with BrokerProcess(folder, SETTINGS) as broker:
        canary = Canary(broker.bootstrap_servers)
        frames = RandomFrames(seed, served_apis(broker.port))
        attack(broker, frames, max(2000, count // 20), canary)
        clean_up(broker.bootstrap_servers)
        before = resident_mib(broker.pid)
        reconnects = attack(broker, frames, count, canary)
        clean_up(broker.bootstrap_servers)
        wrong = grown(broker, before, f"{count:,} frames, {reconnects:,} connections")
        wrong += lost_records(canary)
    return wrong + noted(broker)


def grown(broker: BrokerProcess, before_mib: float, done: str) -> list[str]:
    """Print what was done and the growth of the memory; return a line if it grew too much."""
    growth = resident_mib(broker.pid) - before_mib
    print(f"  {done}, memory {growth:+.1f} MiB from {before_mib:.0f} MiB", flush=True)
    return [f"memory grew by {growth:.1f} MiB"] if growth > ALLOWED_GROWTH_MIB else []


def lost_records(canary: Canary) -> list[str]:
    """Return a line unless the canary finds all its records in order."""
    is_whole = canary.found() == list(range(canary.sung))
    return [] if is_whole else ["records of the canary are missing or out of order"]


def noted(broker: BrokerProcess) -> list[str]:
    """Return the troubles in the log of a broker, of which a copy is kept if there are any."""
    text = broker.log_file.read_text(errors="replace")
    wrong = troubles(text)
    if wrong:
        Path(tempfile.gettempdir(), "ottla-fuzz.log").write_text(text)
    return wrong


# ---- a broker with logins


def before_login(folder: Path, count: int, seed: int) -> list[str]:
    """Send the frames of clients that do not log in, half of them inside TLS; return what went wrong."""
    with SecuredBroker(folder, SETTINGS | OF_LOGINS) as broker:
        canary = canary_of(broker)
        logins = RandomLogins(seed, served_apis(broker.port))
        for listener in LISTENERS:
            without_login(broker, listener, logins, max(1000, count // 8), canary)
        before, wrong = resident_mib(broker.pid), []
        for listener in LISTENERS:
            done = without_login(broker, listener, logins, count // 2, canary)
            wrong += grown(broker, before, f"before a login on {listener}: {done}")
        wrong += strange_things(broker)
        broker.check_honest_clients()
        wrong += lost_records(canary)
    return wrong + noted(broker)


def canary_of(broker: SecuredBroker) -> Canary:
    """Return a canary that logs in over TLS."""
    login = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": broker.cafile,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "canary",
        "sasl.password": PASSWORDS["canary"],
        "client.id": CANARY,
    }
    return Canary(f"127.0.0.1:{broker.ports['SASL_SSL']}", login)


def without_login(
    broker: SecuredBroker, listener: str, logins: RandomLogins, count: int, canary: Canary
) -> str:
    """Send conversations of clients that do not log in until they have so many frames."""
    tls = broker.trusting() if listener == "SASL_SSL" else None
    lanes, sent = Attack(broker.ports[listener], 16, tls=tls), 0

    def throw(number: int) -> None:
        nonlocal sent
        if number < sent:
            return  # of the conversation before
        frames = logins.conversation()
        sent += len(frames)
        if tls is not None and logins.rng.random() < 0.02:
            lanes.throw_raw(logins.records())
        lanes.throw(logins.rng.randrange(16), *frames)

    throw_all(broker, throw, count, canary)
    lanes.close()
    return f"{count:,} frames, {lanes.reconnects:,} connections"


def strange_things(broker: SecuredBroker) -> list[str]:
    """Return what exists although only the canary could have made something."""
    topics = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    names = sorted(name for name in topics.list_topics(timeout=30).topics if not name.startswith("__"))
    found = [] if names == [CANARY] else [f"there are topics {names}"]
    return found + clean_up_security(broker)


def after_login(folder: Path, count: int, seed: int) -> list[str]:
    """Send the frames of two users, one without rights and one with all; return what went wrong."""
    with SecuredBroker(folder, SETTINGS | OF_LOGINS) as broker:
        canary = canary_of(broker)
        canary.sing()
        canary_quotas(broker)
        frames = RandomFrames(seed, served_apis(broker.port), STRINGS + OF_SECURITY)
        for user in ("alice", ADMIN):
            for listener in LISTENERS:
                logged_in(broker, listener, user, frames, max(1000, count // 40), canary)
        for _ in range(10):  # requests that were sent before may be served after a look
            clean_up(broker.bootstrap_servers)
            if not strange_things(broker):
                break
        before, wrong = resident_mib(broker.pid), []
        for user in ("alice", ADMIN):
            for listener in LISTENERS:
                done = logged_in(broker, listener, user, frames, count // 4, canary)
                wrong += strange_things(broker) if user != ADMIN else []
                clean_up(broker.bootstrap_servers)
                clean_up_security(broker)
                wrong += grown(broker, before, f"{user} on {listener}: {done}")
        broker.check_honest_clients()
        wrong += lost_records(canary)
    return wrong + noted(broker)


def logged_in(
    broker: SecuredBroker, listener: str, user: str, frames: RandomFrames, count: int, canary: Canary
) -> str:
    """Send random frames behind logins of a user."""
    requests = [
        (SaslHandshakeRequest(mechanism="PLAIN"), 1),
        (SaslAuthenticateRequest(auth_bytes=plain(user, PASSWORDS[user])), 1),
    ]
    login = [
        sized(encode_request(RequestHeader(request.API_KEY, version, 1, "fuzz"), request))
        for request, version in requests
    ]
    tls = broker.trusting() if listener == "SASL_SSL" else None
    lanes = Attack(broker.ports[listener], tls=tls, login=login)
    throw_all(broker, lambda number: lanes.throw(number, frames.frame()), count, canary)
    lanes.close()
    return f"{count:,} frames, {lanes.reconnects:,} connections"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--attacks",
        nargs="?",
        const="",
        metavar="NAME",
        help="run attacks instead, all or those with NAME in theirs",
    )
    parser.add_argument(
        "--ignore-times", action="store_true", help="fail for memory and answers only: the machine is busy"
    )
    parser.add_argument(
        "--broker-nice", type=int, metavar="N", help="the priority of an attacked broker on a busy machine"
    )
    parser.add_argument(
        "--secure",
        choices=["before", "after"],
        help="send the frames to a broker with logins, before or after a login",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-fuzz-") as folder:
        if options.attacks is not None:
            for module in ATTACKS:
                importlib.import_module(module)
            wrong = attack_costs.run(
                Path(folder),
                options.attacks,
                with_times=not options.ignore_times,
                nice=options.broker_nice,
            )
        elif options.secure is not None:
            run_secured = before_login if options.secure == "before" else after_login
            wrong = run_secured(Path(folder), options.frames, options.seed)
        else:
            wrong = run(Path(folder), options.frames, options.seed)
    for line in wrong[:20]:
        print(f"  WRONG {line}")
    print("ok: it lives, stayed small and kept its word" if not wrong else f"{len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
