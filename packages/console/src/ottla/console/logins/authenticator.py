"""Identify requests by sessions of people and tokens of programs; check passwords on threads."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import Scope

from ottla.client.environment import nonce
from ottla.client.environment import now_ms as time_of_day_ms
from ottla.console.logins.access import Viewer
from ottla.console.logins.files import Logins, LoginsError, read_logins
from ottla.console.logins.sessions import Attempts, Person, Session, Sessions
from ottla.console.records.masking import MaskRule

_log = logging.getLogger(__name__)

THREADS: Final = 2
"""Passwords that are checked at a time: each takes 64 MiB and some tens of milliseconds."""
MOST_WAITING: Final = 32
MOST_PASSWORD: Final = 1_024
LOOK_EVERY_S: Final = 2.0
"""How often the file is looked at for changes."""
COOKIE: Final = "ottla_session"
FAILED: Final = "The name or the password is wrong."


class LoginRefused(Exception):
    """A login is refused; the message is for the person, and `retry_s` says when another makes sense."""

    def __init__(self, why: str, *, retry_s: int = 0) -> None:
        super().__init__(why)
        self.retry_s = retry_s


@dataclass(frozen=True, slots=True)
class Identity:
    """The viewer of a request, None for strangers, and the session if there is one."""

    viewer: Viewer | None = None
    session: Session | None = None


class Authenticator:
    """Knows the people of a file of logins, which it reads again when it changes, and their sessions."""

    def __init__(self, path: Path, logins: Logins, *, now_ms: Callable[[], int] = time_of_day_ms) -> None:
        self.path = path
        self.logins = logins
        self._now_ms = now_ms
        self._sessions = Sessions()
        self._attempts = Attempts()
        self._threads = ThreadPoolExecutor(THREADS, "passwords")
        self._waiting = 0

    async def run(self) -> None:
        """Read the file again when it changes, until cancelled; one that cannot be read changes nothing."""
        known = await asyncio.to_thread(state_of, self.path)
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                if (now := await asyncio.to_thread(state_of, self.path)) != known:
                    known = now
                    await self.read_again()
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def read_again(self) -> None:
        """Read the file; sessions of people that are not in it any more end with their next request."""
        try:
            self.logins = await asyncio.to_thread(read_logins, self.path)
            _log.warning("the file of logins was read again", extra={"path": str(self.path)})
        except LoginsError as error:
            _log.error("the file of logins cannot be read", extra={"reason": str(error)})

    # --- requests

    def identify(self, scope: Scope) -> Identity:
        """Return the sender of a request."""
        return self._identity(scope, is_use=_is_use(Headers(scope=scope)))

    def rights(self, scope: Scope) -> tuple[Viewer | None, tuple[MaskRule, ...]]:
        """Return that which the sender of a request may see by now; it is no use of the session."""
        return self._identity(scope, is_use=False).viewer, self.logins.masks

    def _identity(self, scope: Scope, *, is_use: bool) -> Identity:
        headers = Headers(scope=scope)
        # Some proxies send logins of their own, as Basic: they name nobody here.
        if (authorization := headers.get("authorization", "")).lower().startswith("bearer "):
            return Identity(self._of_token(authorization) if scope["method"] in ("GET", "HEAD") else None)
        session = self.session_of(scope, is_use=is_use)
        viewer = None if session is None else self._viewer(session.person)
        if session is not None and viewer is None:
            self._sessions.end(session.key)
        return Identity(viewer, session if viewer else None)

    def session_of(self, scope: Scope, *, is_use: bool) -> Session | None:
        """Return the session of a request's cookie."""
        secret = cookies_of(Headers(scope=scope)).get(cookie_name(scope), "")
        return self._sessions.find(secret, self._now_ms(), is_use=is_use) if secret else None

    def _of_token(self, authorization: str) -> Viewer | None:
        shown = hashlib.sha256(authorization.partition(" ")[2].strip().encode()).hexdigest()
        for token in self.logins.tokens:
            if hmac.compare_digest(token.sha256, shown):
                return Viewer(token.name, token.grants, identity=f"token:{token.name}")
        return None

    def _viewer(self, person: Person) -> Viewer | None:
        """Return a person with the grants that they have now; None for one without any."""
        if person.way == "oidc":
            provider = self.logins.provider
            if provider is None or provider.issuer != person.issuer:
                return None
            grants = provider.grants_of(person.claimed)
            return Viewer(person.name, grants, identity=person.identity) if grants else None
        user = self.logins.users.get(person.name)
        if user is None or user.password != person.proof:
            return None
        return Viewer(user.name, user.grants, identity=person.identity)

    # --- logins

    async def log_in(self, address: str, name: str, password: str) -> Person:
        """Return the person with a name and a password. Raises LoginRefused.

        An unknown name takes the time of a wrong password, so that answers do not tell names apart.
        """
        facts = {"user": name[:128], "client": address}
        if wait_ms := self._attempts.begin(address, name[:128], self._now_ms()):
            _log.warning("a login is refused", extra={**facts, "reason": "too many attempts"})
            retry_s = -(-wait_ms // 1_000)
            raise LoginRefused(f"There were too many attempts: try again in {retry_s} s.", retry_s=retry_s)
        user = self.logins.users.get(name)
        decoy = next(iter(self.logins.users.values()), None)
        stored = (user or decoy).password if (user or decoy) is not None else ""  # type: ignore[union-attr]
        is_right = await self._is_right(stored, password[:MOST_PASSWORD])
        if user is None or not is_right:
            _log.warning("a login is refused", extra={**facts, "reason": "wrong name or password"})
            raise LoginRefused(FAILED)
        self._attempts.succeed(address, name[:128])
        return Person(user.name, "password", user.password)

    def admit(self, person: Person, address: str, before: Session | None) -> str:
        """Open a session and return its secret; the browser's session before it ends. Raises LoginRefused."""
        if self._viewer(person) is None:
            facts = {"user": person.name, "client": address, "reason": "no role"}
            _log.warning("a login is refused", extra=facts)
            raise LoginRefused("You have no role here: ask those who run this console for one.")
        if before is not None:
            self._sessions.end(before.key)
        secret = nonce()
        self._sessions.open(secret, person, self._now_ms())
        facts = {"user": person.name, "identity": person.identity, "client": address, "way": person.way}
        _log.info("a person logged in", extra=facts)
        return secret

    def log_out(self, session: Session) -> None:
        """End a session."""
        self._sessions.end(session.key)

    async def _is_right(self, stored: str, password: str) -> bool:
        if self._waiting >= MOST_WAITING:
            raise LoginRefused("Too many people log in at this moment: try again in a moment.", retry_s=2)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, is_right, stored, password)
        finally:
            self._waiting -= 1


def hashed(password: str) -> str:
    """Return the argon2id hash of a password, with the library's parameters."""
    from argon2 import PasswordHasher

    found: str = PasswordHasher().hash(password)
    return found


def is_right(stored: str, password: str) -> bool:
    """Whether a password has a hash. It takes tens of milliseconds and 64 MiB."""
    from argon2 import PasswordHasher
    from argon2.exceptions import Argon2Error, InvalidHashError

    try:
        return bool(PasswordHasher().verify(stored, password))
    except (Argon2Error, InvalidHashError):
        return False


def cookie_name(scope: Scope) -> str:
    """Return the name of the session's cookie: over TLS one that no other host can set."""
    if scope.get("scheme") != "https":
        return COOKIE
    return f"__Secure-{COOKIE}" if scope.get("root_path") else f"__Host-{COOKIE}"


def cookies_of(headers: Headers) -> dict[str, str]:
    """Return the cookies of a request."""
    return cookie_parser(headers.get("cookie", ""))  # that of `http.cookies` drops all for one odd cookie


def _is_use(headers: Headers) -> bool:
    """Whether a person sent a request: live updates and charts may come from a page without a reader."""
    destination = headers.get("sec-fetch-dest", "document")
    return headers.get("hx-request") != "true" and destination in ("document", "iframe")


def state_of(path: Path) -> tuple[int, int, int] | None:
    """Return that which differs once a file is written again or replaced; None without one. It blocks."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
