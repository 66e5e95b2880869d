"""The site of the documentation: each page fits a phone, and axe-core finds nothing, light and dark.

`--site=DIR` takes a site that is built already.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from browser.running import AXE_RULES, NARROW, USUAL, problems_of, violations

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted(
    str(page.relative_to(ROOT / "docs").with_suffix("")).removesuffix("index")
    for page in (ROOT / "docs").glob("**/*.md")
)
# In both colours and both widths; of the others, whose parts are the same, light and wide has to do.
LOOKED_AT_CLOSELY: Final = (
    "",
    "for/operators",
    "tutorial/first-producer",
    "howto/look-into-a-cluster",
    "reference/configuration",
    "reference/producer",
    "reference/command",
    "design/",
)
# The theme gives parts of its navigation no names of their own, which is against advice, not against WCAG.
RULES: Final = tuple(rule for rule in AXE_RULES if rule != "best-practice")


class Quiet(SimpleHTTPRequestHandler):
    """Serve files, and write no line for each."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Leave out the line."""


@pytest.fixture(scope="session")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the built site."""
    folder = request.config.getoption("--site")
    if folder is None:
        folder = tmp_path_factory.mktemp("site")
        building = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
        subprocess.run(building, check=True, cwd=ROOT, timeout=600)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        serving.join()


@pytest.fixture(scope="session")
def reader(browser: Any) -> Iterator[Any]:
    """A tab of a person who asks for less motion: a page that fades in has no contrast while it does."""
    context = browser.new_context(viewport=USUAL, reduced_motion="reduce", service_workers="block")
    yield context.new_page()
    context.close()


def flaws_of(page: Any, axe: str, colours: str, size: dict[str, int]) -> list[str]:
    """Return what is wrong with an open page in one look."""
    page.emulate_media(color_scheme=colours)
    page.set_viewport_size(size)
    wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    found = [f"{wider} pixels wider than {size['width']}"] if wider > 0 else []
    return [f"{colours}, {size['width']}: {line}" for line in [*found, *violations(page, axe, RULES)]]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_site_can_be_read_by_everybody(reader: Any, axe: str, site: str, page: str) -> None:
    problems = problems_of(reader)
    reader.goto(f"{site}{page}", wait_until="load")
    looks = [("light", USUAL)]
    if page in LOOKED_AT_CLOSELY:
        looks += [("light", NARROW), ("dark", USUAL), ("dark", NARROW)]
    found = [flaw for colours, size in looks for flaw in flaws_of(reader, axe, colours, size)]
    reader.set_viewport_size(NARROW)
    wider = reader.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert (found, wider, problems) == ([], 0, [])
