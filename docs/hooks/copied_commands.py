"""The copy button of a console block gives its commands: neither prompts nor what they print."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

PROMPT = "$ "
_BLOCK = re.compile(r'<div class="highlight">(?P<pre><pre.*?><code>(?P<code>.*?)</code></pre>)', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Say in each console block what is copied from it, as `data-copy`: the theme's button takes that."""
    return _BLOCK.sub(_with_commands, content)


def commands_of(shown: str) -> str:
    """Give the lines of a console block that are typed, continued lines included, without their prompts."""
    return "\n".join(_typed(shown))


def _typed(shown: str) -> Iterator[str]:
    continued = False
    for line in shown.splitlines():
        if continued or line.startswith(PROMPT):
            yield line if continued else line.removeprefix(PROMPT)
            continued = line.endswith("\\")


def _with_commands(block: re.Match[str]) -> str:
    shown = html.unescape(re.sub(r"<[^>]+>", "", block["code"]))
    if not shown.startswith(PROMPT):
        return block[0]
    copied = html.escape(commands_of(shown)).replace("\n", "&#10;")
    return f'<div class="highlight" data-copy="{copied}">{block["pre"]}'
