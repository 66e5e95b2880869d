"""Make the pictures of the console in docs/images: `nox -s screenshots`.

A cluster of three with the demo in it, and a history of six hours, looked at in Chromium at the widths of a
phone, a laptop and a large screen, dark and light. The pictures have 128 colours, to stay small.
"""

from __future__ import annotations

import asyncio
import io
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from browser.demo import remember
from browser.running import BOUND_MS, ConsoleProcess, chromium, running

IMAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "images"
COLOURS: Final = 128
RULES: Final = """
[[rule]]
name = "billing lags"
kind = "lag"
match = "billing*"
above = 100
for_minutes = 0
"""


class Picture(NamedTuple):
    """A picture: its name, the page, the theme, and the size of the window."""

    name: str
    path: str
    theme: str
    width: int
    height: int
    waits_for: str = "h1"
    broker_is_away: bool = False


PICTURES: Final = (
    Picture("cluster-light", "/c/local/", "light", 1_280, 900),
    Picture("cluster-wide-dark", "/c/local/", "dark", 2_560, 1_100),
    Picture("topics-dark", "/c/local/topics", "dark", 1_280, 720),
    Picture("records-light", "/c/local/topics/orders/records", "light", 1_280, 900),
    Picture("group-light", "/c/local/group?name=billing", "light", 1_280, 900, "#lag-chart canvas"),
    Picture("group-phone-dark", "/c/local/group?name=billing", "dark", 390, 844, "#lag-chart canvas"),
    Picture("topics-phone-light", "/c/local/topics", "light", 390, 844),
    Picture("groups-wide-light", "/c/local/groups", "light", 2_560, 800),
    Picture("night-dark", "/c/local/", "dark", 1_280, 900, ".role.away", broker_is_away=True),
)


def main() -> None:
    from playwright.sync_api import sync_playwright

    path = chromium()
    if path is None:
        raise SystemExit("needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as name, running("three", Path(name)) as cluster:
        folder = Path(name) / "console"
        folder.mkdir()
        (folder / "rules.toml").write_text(RULES)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, remember(folder / "console.sqlite", int(time.time()))).result()
        options = ("--allow-changes", "--alerts", str(folder / "rules.toml"))
        with ConsoleProcess(cluster.servers, folder, *options) as console, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            for picture in sorted(PICTURES, key=lambda picture: picture.broker_is_away):
                if picture.broker_is_away and cluster.cluster.brokers[2].is_started:
                    cluster.cluster.brokers[2].kill()
                take(browser, console.url, picture)
            browser.close()
    print(f"{sum(path.stat().st_size for path in IMAGES.glob('console-*.png')) / 1e6:.2f} MB in {IMAGES}")


def take(browser: Any, url: str, picture: Picture) -> None:
    """Open a page in a window of its own and write its picture."""
    size = {"width": picture.width, "height": picture.height}
    context = browser.new_context(base_url=url, viewport=size, color_scheme=picture.theme)
    context.set_default_timeout(BOUND_MS)
    page = context.new_page()
    page.goto(picture.path)
    page.locator(picture.waits_for).first.wait_for()
    write(page.screenshot(), IMAGES / f"console-{picture.name}.png")
    context.close()


def write(image: bytes, path: Path) -> None:
    """Write a picture with few colours."""
    from PIL import Image

    with Image.open(io.BytesIO(image)) as opened:
        few = opened.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        few.save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size // 1_024} KiB")


if __name__ == "__main__":
    main()
