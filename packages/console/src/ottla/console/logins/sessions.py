"""Sessions of logged-in people, and the limit of attempts to log in. Pure: the caller gives the time."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Final, Literal

IDLE_MS: Final = 30 * 60_000
"""A session ends after this time without a page that its person opened; live updates do not count."""
LASTING_MS: Final = 12 * 3_600_000
"""A session ends after this time in any case."""
MOST_SESSIONS: Final = 10_000
MOST_OF_A_USER: Final = 20


@dataclass(frozen=True, slots=True)
class Person:
    """A person as they logged in: by a password, or through a provider with the values of their role claim.

    `proof` is the hash of the password: a new password ends the sessions of the old one. A provider knows its
    people by their `subject`; their names may change, and be those of others.
    """

    name: str
    way: Literal["password", "oidc"]
    proof: str = ""
    claimed: tuple[str, ...] = ()
    issuer: str = ""
    subject: str = ""

    @property
    def identity(self) -> str:
        """The text that is this person's alone: `user:NAME`, or `ISSUER#SUBJECT` (an issuer has no `#`)."""
        return f"user:{self.name}" if self.way == "password" else f"{self.issuer}#{self.subject}"


@dataclass(slots=True)
class Session:
    """One browser of a person; `key` names it here, as the secret is with the browser only."""

    key: str
    person: Person
    opened_ms: int
    used_ms: int


def key_of(secret: str) -> str:
    """Return the name of the session with a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Sessions:
    """All sessions, of a bounded number: the one that was not used for longest ends first."""

    def __init__(self, *, most: int = MOST_SESSIONS, most_of_a_user: int = MOST_OF_A_USER) -> None:
        self._most = most
        self._most_of_a_user = most_of_a_user
        self._open: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, secret: str, person: Person, now_ms: int) -> None:
        """Begin a session with a secret that nothing else knows."""
        of_user = [session for session in self._open.values() if session.person.identity == person.identity]
        if len(of_user) >= self._most_of_a_user:
            self.end(of_user[0].key)
        if len(self._open) >= self._most:
            self._open.popitem(last=False)
        key = key_of(secret)
        self._open[key] = Session(key, person, now_ms, now_ms)

    def find(self, secret: str, now_ms: int, *, is_use: bool) -> Session | None:
        """Return the session with a secret; None for one that ended. With `is_use` it lasts longer."""
        if (session := self._open.get(key_of(secret))) is None:
            return None
        if now_ms - session.used_ms >= IDLE_MS or now_ms - session.opened_ms >= LASTING_MS:
            self.end(session.key)
            return None
        if is_use:
            session.used_ms = now_ms
            self._open.move_to_end(session.key)
        return session

    def end(self, key: str) -> None:
        """End a session."""
        self._open.pop(key, None)


# --- attempts

ADDRESS_BURST, ADDRESS_EVERY_MS = 20, 15_000
USER_BURST, USER_EVERY_MS = 10, 30_000
"""Attempts at once, and the time after which there is one more. An attempt that succeeds counts as none."""
MOST_KNOWN: Final = 10_000


class Limit:
    """Counts attempts by a name: so many at once, then one each so often; of a bounded number of names."""

    def __init__(self, burst: int, every_ms: int, most_known: int = MOST_KNOWN) -> None:
        self._span_ms = (burst - 1) * every_ms
        self._every_ms = every_ms
        self._most_known = most_known
        self._clear_ms: OrderedDict[str, int] = OrderedDict()
        """When all attempts of a name will be forgotten, the oldest attempt first."""

    def __len__(self) -> int:
        return len(self._clear_ms)

    def wait_ms(self, name: str, now_ms: int) -> int:
        """Return the time until the next attempt is allowed; 0 where it is now."""
        return max(0, self._clear_ms.get(name, now_ms) - now_ms - self._span_ms)

    def count(self, name: str, now_ms: int) -> None:
        """Count one attempt."""
        clear_ms = max(self._clear_ms.pop(name, now_ms), now_ms) + self._every_ms
        while self._clear_ms and (
            len(self._clear_ms) >= self._most_known or next(iter(self._clear_ms.values())) <= now_ms
        ):
            self._clear_ms.popitem(last=False)
        self._clear_ms[name] = clear_ms

    def take_back(self, name: str) -> None:
        """Count one attempt less: it succeeded."""
        if name in self._clear_ms:
            self._clear_ms[name] -= self._every_ms


class Attempts:
    """The limits of attempts by address and by user."""

    def __init__(self) -> None:
        self._addresses = Limit(ADDRESS_BURST, ADDRESS_EVERY_MS)
        self._users = Limit(USER_BURST, USER_EVERY_MS)

    def begin(self, address: str, user: str, now_ms: int) -> int:
        """Count an attempt and return 0, or return the time in ms until one is allowed."""
        names = (self._addresses, network_of(address)), (self._users, user)
        if wait_ms := max(limit.wait_ms(name, now_ms) for limit, name in names):
            return wait_ms
        for limit, name in names:
            limit.count(name, now_ms)
        return 0

    def succeed(self, address: str, user: str) -> None:
        """Take back an attempt that succeeded."""
        self._addresses.take_back(network_of(address))
        self._users.take_back(user)


def network_of(address: str) -> str:
    """Return the name by which an address is counted: that of its network of IPv6, which one person has."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(ip_network(f"{found}/64", strict=False)) if found.version == 6 else str(found)
