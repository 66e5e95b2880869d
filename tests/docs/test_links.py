"""Links between pages, as they are in a clone: a reader on disk has no built site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from peers.snippets import PAGES, ROOT

LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_of_the_clone(page: Path) -> None:
    text = CODE.sub("", page.read_text(encoding="utf-8"))

    dead = [target for target, _ in LINK.findall(text) if not (page.parent / target).exists()]

    assert not dead


def test_a_generated_page_says_in_a_clone_how_it_is_made() -> None:
    names = re.findall(
        r'^        "([\w-]+)": \w+\(', (ROOT / "docs/hooks/reference.py").read_text(), re.MULTILINE
    )
    assert len(names) == 12

    for name in names:
        text = (ROOT / f"docs/reference/{name}.md").read_text(encoding="utf-8")
        assert f"`nox -s docs` writes it\nto `site/reference/{name}/index.html`" in text
