"""How soon a changed ACL, password and certificate hold on a cluster of three brokers.

Run `python benchmarks/access_changes.py`. An ACL is created by one broker and deleted by another, while 501
connections with TLS and a login, of all three, ask as fast as they can; the figure is the time until all of
them were answered by the new rule. A password and a certificate hold for new logins: the figure is the time
until each broker takes the new one, and refuses the old. The goal is a second for all.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import create_connection, socket
from typing import Final

from contenders import show
from idle_connections import MECHANISM, PASSWORD, USER, ask, encrypted, logged_in, receive
from ottla.broker.security.sasl.testing import Wire, upsertion_of
from ottla.broker.server.secure_setup import prepare
from ottla.broker.testing import BrokerCluster, free_port
from ottla.protocol.api import RequestHeader, encode_request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

_GOAL_MS: Final = 1_000
_BROKERS: Final = (1, 2, 3)
_BOUND_S: Final = 60.0
_GROUP, _LITERAL, _ANY, _READ, _ALLOW = 3, 3, 1, 3, 3
_VERSION: Final = 3


class Secured:
    """The running cluster: its ports for administrators, and for clients with a login."""

    def __init__(self, admin_ports: Sequence[int], client_ports: Sequence[int], folder: Path) -> None:
        self.admin_ports, self.client_ports = admin_ports, client_ports
        self._folder = folder
        self._made = 0

    def put_certificate(self) -> str:
        """Give all brokers a certificate that is new; return its fingerprint."""
        self._made += 1
        made = prepare(self._folder / f"certificate-{self._made}", []).files.certificate
        for number in _BROKERS:
            written = self._folder / f"broker-{number}.new"
            shutil.copy(made, written)
            written.rename(self._folder / f"broker-{number}.pem")  # never half of it
        return made.read_text()


@contextmanager
def cluster(folder: Path) -> Iterator[Secured]:
    """Run three brokers with ACLs, where clients of the plain listener are super users."""
    admin_ports, client_ports = ([free_port() for _ in _BROKERS] for _ in range(2))
    there = Secured(admin_ports, client_ports, folder)
    there.put_certificate()
    common = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
        "ssl.keystore.type": "PEM",
        "ssl.allow.dn.changes": "true",
        "sasl.enabled.mechanisms": MECHANISM,
    }
    of_broker = {
        number: {
            "listeners": f"PLAINTEXT://127.0.0.1:{admin},SASL_SSL://127.0.0.1:{client}",
            "ssl.keystore.location": str(folder / f"broker-{number}.pem"),
        }
        for number, admin, client in zip(_BROKERS, admin_ports, client_ports, strict=True)
    }
    with BrokerCluster(folder / "data", common, of_broker=of_broker):
        set_password(there, PASSWORD)
        until(lambda: all(accepts(port, PASSWORD) for port in client_ports))
        yield there


def until(holds: Callable[[], bool]) -> float:
    """Ask until it holds; return how many milliseconds that took."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > _BOUND_S:
            raise TimeoutError(f"the change does not hold after {_BOUND_S:g} s")
    return (time.monotonic() - began) * 1000


# ---- ACLs


def create(port: int) -> None:
    rule = AclCreation(
        resource_type=_GROUP, resource_name="g", resource_pattern_type=_LITERAL, principal=f"User:{USER}",
        host="*", operation=_READ, permission_type=_ALLOW,
    )  # fmt: skip
    with create_connection(("127.0.0.1", port), _BOUND_S) as plug:
        answer = ask(plug, CreateAclsRequest(creations=[rule]), _VERSION)
    assert [result.error_code for result in CreateAclsResponse.decode(answer, _VERSION).results] == [0]


def delete(port: int) -> None:
    wanted = DeleteAclsFilter(
        resource_type_filter=_GROUP, resource_name_filter="g", pattern_type_filter=_LITERAL,
        principal_filter=None, host_filter=None, operation=_ANY, permission_type=_ANY,
    )  # fmt: skip
    with create_connection(("127.0.0.1", port), _BOUND_S) as plug:
        answer = ask(plug, DeleteAclsRequest(filters=[wanted]), _VERSION)
    assert len(DeleteAclsResponse.decode(answer, _VERSION).filter_results[0].matching_acls) == 1


class Clients:
    """Open connections that all ask at once whether they may read a group."""

    def __init__(self, plugs: Sequence[socket]) -> None:
        self._plugs = plugs
        header = RequestHeader(HeartbeatRequest.API_KEY, 0, 7, "it")
        beat = encode_request(header, HeartbeatRequest(group_id="g", generation_id=1, member_id="m"))
        self._frame = len(beat).to_bytes(4, "big") + beat

    def __len__(self) -> int:
        return len(self._plugs)

    def are_all(self, *, denied: bool) -> bool:
        for plug in self._plugs:
            plug.sendall(self._frame)
        codes = [self._error_code(plug) for plug in self._plugs]
        return {code == ErrorCode.GROUP_AUTHORIZATION_FAILED for code in codes} == {denied}

    def _error_code(self, plug: socket) -> int:
        answer = receive(plug, int.from_bytes(receive(plug, 4), "big"))
        return HeartbeatResponse.decode(answer[4:], 0).error_code


def acl_changes(there: Secured, clients: Clients, rounds: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds until a granted and a revoked right held for all clients."""
    granted, revoked = [], []
    for _ in range(rounds):
        create(there.admin_ports[0])
        granted.append(until(lambda: clients.are_all(denied=False)))
        delete(there.admin_ports[1])
        revoked.append(until(lambda: clients.are_all(denied=True)))
    return granted, revoked


# ---- logins


def set_password(there: Secured, password: str) -> None:
    """Alter the user's credential at the controller, which alone does it."""
    for port in there.admin_ports:
        with Wire(port) as wire:
            if wire.alter(upsertions=[upsertion_of(USER, MECHANISM, password)]) == [(0, None)]:
                return
    raise RuntimeError("no broker has set the password")


def accepts(port: int, password: str) -> bool:
    plug = logged_in(port, password)
    if plug is not None:
        plug.close()
    return plug is not None


def password_changes(there: Secured, rounds: int) -> list[float]:
    """Return the milliseconds until every broker took a new password, and the old one no more."""
    found, before = [], PASSWORD
    for number in range(rounds):
        password = f"{PASSWORD} {number}"
        set_password(there, password)
        found.append(until(lambda: all(accepts(port, password) for port in there.client_ports)))  # noqa: B023
        assert not any(accepts(port, before) for port in there.client_ports)
        before = password
    return found


def certificate_changes(there: Secured, rounds: int) -> list[float]:
    """Return the milliseconds until every broker showed a certificate that was put into its file."""
    found = []
    for _ in range(rounds):
        text = there.put_certificate()
        found.append(until(lambda: all(served(port) in fingerprints(text) for port in there.client_ports)))  # noqa: B023
    return found


def served(port: int) -> str:
    """Return the fingerprint of the certificate that a broker shows."""
    with encrypted(port) as plug:
        certificate = plug.getpeercert(binary_form=True)
    assert certificate is not None
    return hashlib.sha256(certificate).hexdigest()


def fingerprints(pem: str) -> set[str]:
    import ssl

    _, *certificates = pem.split("-----BEGIN CERTIFICATE-----")
    return {
        hashlib.sha256(ssl.PEM_cert_to_DER_cert(f"-----BEGIN CERTIFICATE-----{text}")).hexdigest()
        for text in certificates
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--connections", type=int, default=167, help="of each of the three brokers")
    parser.add_argument("--quick", action="store_true", help="three rounds")
    options = parser.parse_args()
    rounds = 3 if options.quick else options.rounds
    with tempfile.TemporaryDirectory(prefix="ottla-changes-") as folder, ExitStack() as stack:
        there = stack.enter_context(cluster(Path(folder)))
        plugs = [logged_in(port) for port in there.client_ports for _ in range(options.connections)]
        clients = Clients([stack.enter_context(plug) for plug in plugs if plug is not None])
        assert clients.are_all(denied=True)
        granted, revoked = acl_changes(there, clients, rounds)
        found = {
            f"ACL created, {len(clients)} open connections": granted,
            f"ACL deleted, {len(clients)} open connections": revoked,
            "password, new logins at 3 brokers": password_changes(there, rounds),
            "certificate, new connections to 3 brokers": certificate_changes(there, rounds),
        }
    rows = [
        (what, f"{statistics.median(ms):.0f}", f"{min(ms):.0f}", f"{max(ms):.0f}")
        for what, ms in found.items()
    ]
    show(f"milliseconds until a change holds, {rounds} changes", rows, ("", "median", "least", "most"))
    print(f"\n  the goal is {_GOAL_MS} ms")
    return 1 if any(max(ms) > _GOAL_MS for ms in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
