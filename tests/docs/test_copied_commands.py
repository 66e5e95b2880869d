"""The copy button of the site gives what a reader types: the commands of a console block."""

from __future__ import annotations

import html
import importlib.util
import re
import shlex
from types import ModuleType

import pytest

from peers.snippets import ROOT, commands

HOOK = ROOT / "docs/hooks/copied_commands.py"
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONSOLES = [
    pytest.param(code, id=f"{page.relative_to(ROOT)}-{number}")
    for page in sorted(ROOT.glob("docs/**/*.md"))
    for number, code in enumerate(CONSOLE.findall(page.read_text(encoding="utf-8")))
]


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("copied_commands", HOOK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rendered(code: str) -> str:
    """Write a block as the site has it: prompts and strings in elements of their own."""
    lines = html.escape(code).replace("$ ", '<span class="gp">$ </span>')
    return f'<div class="highlight"><pre><span></span><code>{lines}</code></pre></div>'


def copied(page: str) -> str:
    found = re.search(r'<div class="highlight" data-copy="([^"]*)">', page)
    assert found is not None, page
    return html.unescape(found[1])


@pytest.mark.parametrize("code", CONSOLES)
def test_commands_are_copied_and_nothing_else(hook: ModuleType, code: str) -> None:
    given = copied(hook.on_page_content(rendered(code), page=None, config=None, files=None))
    assert [line for line in given.splitlines() if line.startswith("$ ")] == []
    # A shell that is given the copied text runs the commands of the block, in this order.
    assert shlex.split(given.replace("\\\n", ""), comments=True) == [
        word for command, _ in commands(code) for word in shlex.split(command, comments=True)
    ]


def test_a_continued_command_is_copied_whole(hook: ModuleType) -> None:
    assert hook.commands_of("$ ottla produce a \\\n    --key b\nProduced.\n$ date\n") == (
        "ottla produce a \\\n    --key b\ndate"
    )


def test_the_text_of_other_blocks_is_copied_as_it_is(hook: ModuleType) -> None:
    page = '<div class="highlight"><pre><span></span><code>price = "$ 3"\n</code></pre></div>'
    assert hook.on_page_content(page, page=None, config=None, files=None) == page


def test_the_site_uses_the_hook() -> None:
    assert "docs/hooks/copied_commands.py" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
