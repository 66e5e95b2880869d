"""Tokens that a form of ours carries, and a form of another site cannot (cross-site request forgery)."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ottla.client.environment import nonce, random_bytes

COOKIE: Final = "ottla_console"
_MOST_COOKIE: Final = 64


class FormTokens:
    """Tokens of forms, each good for the browser that got the form, while this process runs."""

    def __init__(self) -> None:
        self._key = random_bytes(32)

    def of(self, request: Request) -> tuple[str, str]:
        """Return the browser's name and the token for it. `keep` gives a new browser its name.

        After a login the name is the session: a token that was got before it, or in another one, is none.
        """
        if (session := getattr(request.state, "session", None)) is not None:
            return "", self._token(f"session {session.key}")
        browser = request.cookies.get(COOKIE, "")
        if not browser or len(browser) > _MOST_COOKIE:
            browser = nonce()
        return browser, self._token(browser)

    def keep(self, request: Request, response: Response, browser: str) -> None:
        """Give a browser its name: a cookie that no script and no other site sees."""
        if browser:
            secure, path = request.url.scheme == "https", request.scope.get("root_path") or "/"
            response.set_cookie(COOKIE, browser, httponly=True, samesite="strict", path=path, secure=secure)

    def is_valid(self, request: Request, token: str) -> bool:
        """Whether a token belongs to the browser that sent it."""
        session = getattr(request.state, "session", None)
        browser = request.cookies.get(COOKIE, "") if session is None else f"session {session.key}"
        return bool(browser) and hmac.compare_digest(self._token(browser).encode(), token.encode())

    def _token(self, browser: str) -> str:
        return hmac.new(self._key, browser.encode(), hashlib.sha256).hexdigest()
