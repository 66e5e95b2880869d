"""The cells of the page about notebooks, run as a notebook runs them: with `await`, and with displays."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.testing import BrokerProcess
from peers.snippets import PRINTED_SERVERS, ROOT, blocks

PAGE = ROOT / "docs/howto/use-in-notebooks.md"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as running:
        yield running


async def displayed(cell: str, names: dict[str, Any]) -> object:
    """Run a cell; return the value of its last line if that is an expression."""
    tree = ast.parse(cell)
    if isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("_shown", ast.Store())], last.value), last)
    names["_shown"] = None
    code = compile(ast.fix_missing_locations(tree), str(PAGE), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = eval(code, names)
    if inspect.iscoroutine(made):
        await made
    return names["_shown"]


async def run_notebook(servers: str) -> list[object]:
    names: dict[str, Any] = {"__name__": "notebook"}
    cells = [block.code.replace(PRINTED_SERVERS, servers) for block in blocks(PAGE, "needs notebook")]
    return [await asyncio.wait_for(displayed(cell, names), 60) for cell in cells]


def html_of(value: object) -> str:
    shown = value._repr_html_()  # type: ignore[attr-defined]
    assert isinstance(shown, str)
    return shown


async def test_each_cell_of_the_page_about_notebooks_runs_and_shows_its_table(broker: BrokerProcess) -> None:
    _, topic, batch, orders, drinks, _, latest, _ = await run_notebook(broker.bootstrap_servers)

    assert "seen-in-notebooks" in html_of(topic)
    assert "franz" in html_of(batch)
    assert "&lt;b&gt;water&lt;/b&gt;" in html_of(batch)
    assert "milena" in html_of(orders)
    assert "franz" in html_of(drinks)
    assert "milk" in html_of(latest)


async def test_the_notebook_can_be_run_again(broker: BrokerProcess) -> None:
    await run_notebook(broker.bootstrap_servers)

    assert "milk" in html_of((await run_notebook(broker.bootstrap_servers))[-2])
