"""Pages from templates. A request of htmx gets the content alone, any other one the whole page."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, Final

import jinja2
from starlette.requests import Request
from starlette.responses import Response

from ottla.console import __version__
from ottla.console.web import formats

_FIRST: Final = ("layout.html", "first_look.html", "parts.html", "overview.html")
_OTHERS_AFTER_S: Final = 5.0
_PAUSE_S: Final = 0.1
_HTML: Final = "text/html; charset=utf-8"


def environment() -> jinja2.Environment:
    """Return the templates. All values are escaped, and a name that is not given is an error."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("ottla.console", "templates"), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    found.filters |= {
        "count": formats.count, "size": formats.size, "age": formats.age, "moment": formats.moment,
        "whole": formats.whole, "printable": formats.printable, "rate": formats.rate,
        "entity": formats.entity,
    }  # fmt: skip
    found.globals["version"] = __version__
    return found


class Renderer:
    """Renders templates, and answers 304 to a browser that has the same page already."""

    def __init__(self, base_path: str = "") -> None:
        self._environment = environment()
        self.base_path = base_path

    async def compile(self) -> None:
        """Compile all templates in threads, one after the other: a page would wait for that.

        Those of the first page come first, the others when the first look at the clusters is over.
        """
        for name in _FIRST:
            await asyncio.to_thread(self._environment.get_template, name)
        await asyncio.sleep(_OTHERS_AFTER_S)
        for name in self._environment.list_templates():
            await asyncio.to_thread(self._environment.get_template, name)
            await asyncio.sleep(_PAUSE_S)

    def respond(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        """Return a page, or its content alone for htmx."""
        is_content = request.headers.get("hx-request") == "true"
        shown = {"base": self.base_path, "path": request.url.path, "cluster": None, **values}
        name = f"{template}.html" if is_content else "layout.html"
        body = self._environment.get_template(name).render(content=f"{template}.html", **shown).encode()
        tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        # The content and the whole page have one address.
        headers = {"etag": tag, "vary": "HX-Request, Cookie", "cache-control": "private, no-cache"}
        if status == 200 and request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, status, headers, media_type=_HTML)

    def fragment(self, template: str, **values: Any) -> str:
        """Return a part of a page, for one that is there already."""
        return self._environment.get_template(f"{template}.html").render(base=self.base_path, **values)
