"""The login: by name and password, or through a provider of OpenID Connect; and the logout."""

from __future__ import annotations

import logging
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ottla.console.logins.authenticator import Authenticator, LoginRefused, cookie_name
from ottla.console.logins.gate import LOGIN_PATH
from ottla.console.logins.oidc import LASTING_MS, OpenId, ProviderFailed
from ottla.console.logins.sessions import Person
from ottla.console.pages import check_form, respond_with_form
from ottla.console.pages.changes import read_form

_log = logging.getLogger(__name__)

_MOST_BYTES: Final = 16 << 10
"""The form of a stranger: thousands of them must fit into memory."""
OIDC_COOKIE: Final = "ottla_login"
_FAILED: Final = "The login through the provider failed; the log of the console says why."


async def login(request: Request) -> Response:
    """Show the form of the login; with POST, log in."""
    if request.method != "POST":
        return _form(request, request.query_params.get("next", ""))
    form = await _form_of(request)
    name, then = form.get("user", "").strip(), form.get("next", "")
    try:
        person = await _authenticator(request).log_in(address_of(request), name, form.get("password", ""))
        return _admitted(request, person, then)
    except LoginRefused as error:
        return _form(request, then, user=name, refused=error)


async def begin_oidc(request: Request) -> Response:
    """Send the browser to the provider."""
    then = request.query_params.get("next", "")
    try:
        url, cookie = await _openid(request).begin(_callback(request), _safe(request, then))
    except ProviderFailed as error:
        return _provider_failed(request, error, then)
    response = RedirectResponse(url, status_code=303)
    response.set_cookie(
        OIDC_COOKIE, cookie, max_age=LASTING_MS // 1_000, httponly=True, samesite="lax",
        path=_base(request) + LOGIN_PATH, secure=request.url.scheme == "https",
    )  # fmt: skip
    return response


async def finish_oidc(request: Request) -> Response:
    """Log in the person whom the provider sends back."""
    cookie = request.cookies.get(OIDC_COOKIE, "")
    try:
        person, then = await _openid(request).finish(request.query_params, cookie, _callback(request))
        response = _admitted(request, person, then)
    except LoginRefused as error:
        _log.warning("a login is refused", extra={"client": address_of(request), "reason": str(error)})
        response = _form(request, "", refused=error)
    except ProviderFailed as error:
        response = _provider_failed(request, error, "")
    response.delete_cookie(OIDC_COOKIE, path=_base(request) + LOGIN_PATH)
    return response


async def logout(request: Request) -> Response:
    """End the session."""
    await _form_of(request)
    if (session := request.state.session) is not None:
        _authenticator(request).log_out(session)
    response = RedirectResponse(f"{_base(request)}{LOGIN_PATH}?left=1", status_code=303)
    response.delete_cookie(cookie_name(request.scope), path=_base(request) or "/")
    if request.url.scheme == "https":
        response.headers["clear-site-data"] = '"cache"'
    return response


def address_of(request: Request) -> str:
    """Return the address of the browser."""
    return request.client.host if request.client else "unknown"


def _authenticator(request: Request) -> Authenticator:
    found: Authenticator | None = request.app.state.authenticator
    if found is None:
        raise HTTPException(404, "the console has no logins: it serves this machine only")
    return found


def _openid(request: Request) -> OpenId:
    provider = _authenticator(request).logins.provider
    if provider is None:
        raise HTTPException(404, "the console has no provider of logins")
    state = request.app.state
    if state.openid is None or state.openid.provider != provider:
        state.openid = OpenId(provider, transport=state.openid_transport)
    found: OpenId = state.openid
    return found


async def _form_of(request: Request) -> dict[str, str]:
    form = await read_form(request, _MOST_BYTES)
    check_form(request, form.get("token", ""))
    return form


def _form(request: Request, then: str, *, user: str = "", refused: LoginRefused | None = None) -> Response:
    logins = _authenticator(request).logins
    status = 200 if refused is None else 429 if refused.retry_s else 401
    response = respond_with_form(
        request, "login", status=status, title="Log in", is_live=False, host=request.url.netloc,
        then=_safe(request, then), user=user[:128], failure="" if refused is None else str(refused),
        has_users=bool(logins.users), provider=logins.provider.label if logins.provider else "",
        left=request.query_params.get("left") == "1" and refused is None,
    )  # fmt: skip
    if refused is not None and refused.retry_s:
        response.headers["retry-after"] = str(refused.retry_s)
    response.headers["cache-control"] = "no-store"
    return response


def _provider_failed(request: Request, error: ProviderFailed, then: str) -> Response:
    _log.warning("the provider of logins failed", extra={"reason": str(error)})
    return _form(request, then, refused=LoginRefused(_FAILED))


def _admitted(request: Request, person: Person, then: str) -> Response:
    """Return the way to a page with a new session; an id that the browser brought is never one."""
    secret = _authenticator(request).admit(person, address_of(request), request.state.session)
    response = RedirectResponse(_safe(request, then), status_code=303)
    # Lax, as a strict cookie is not sent with links from a chat, nor on the way back from the provider.
    response.set_cookie(
        cookie_name(request.scope), secret, httponly=True, samesite="lax", path=_base(request) or "/",
        secure=request.url.scheme == "https",
    )  # fmt: skip
    return response


def _safe(request: Request, then: str) -> str:
    """Return an address of this console: no other host's, which browsers also see in //host and \\host."""
    home = f"{_base(request)}/"
    is_ours = then.startswith(home) and then[1:2] != "/" and "\\" not in then and then.isprintable()
    return then if is_ours else home


def _callback(request: Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc}{_base(request)}{LOGIN_PATH}/oidc/callback"


def _base(request: Request) -> str:
    found: str = request.scope.get("root_path", "")
    return found
