"""Record a terminal session as an animated picture: `nox -s recording`.

termtosvg draws docs/images/first-minute.svg. Readers who ask their system for less motion see its end, as a
picture that stands still.
"""

from __future__ import annotations

import os
import pty
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PICTURE = HERE.parent / "images" / "first-minute.svg"
LESS_MOTION = "@media (prefers-reduced-motion: reduce)"
STILL = LESS_MOTION + " {{ #screen_view {{ animation: none !important; transform: {last} }} }}"


def main() -> int:
    session = f"bash {HERE / 'first_minute.sh'}"
    os.environ["TERM"] = "xterm-256color"
    drawing = ["termtosvg", str(PICTURE), "-g", "90x24", "-t", "gjm8", "-m", "40", "-M", "3000"]
    ended = os.waitstatus_to_exitcode(pty.spawn([*drawing, "-c", session]))
    if ended == 0:
        PICTURE.write_text(standing_still_for_some(PICTURE.read_text()))
    return ended


def standing_still_for_some(drawn: str) -> str:
    """Add the rule for readers who want less motion: the last frame alone."""
    frames = re.findall(r"%\{transform:(translateY\([^)]*\))\}", drawn)
    still = STILL.format(last=frames[-1])
    return drawn.replace("@keyframes roll", f"{still}\n            @keyframes roll", 1)


if __name__ == "__main__":
    sys.exit(main())
