"""Each cell of a table names its column, so that the rows of a table can be cards on a phone."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor
from mkdocs.config.defaults import MkDocsConfig


class LabelledCells(Extension):
    """Write the heading of its column into each cell of the body of a table, as `data-label`."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - Markdown calls it by this name
        """Run behind the processor of what stands within lines, so that headings are complete."""
        md.treeprocessors.register(_Labelling(md), "labelled_cells", 15)


class _Labelling(Treeprocessor):
    def run(self, root: Element) -> None:
        for table in root.iter("table"):
            headings = ["".join(cell.itertext()).strip() for cell in table.iter("th")]
            for row in table.findall("tbody/tr"):
                for heading, cell in zip(headings, row.findall("td"), strict=False):
                    cell.set("data-label", heading)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the extension to those that the site is written with."""
    config.markdown_extensions.append(LabelledCells())  # type: ignore[arg-type]
    return config


def on_post_page(output: str, **_: object) -> str:
    """Give the dialog of the theme's search the name that it lacks."""
    return output.replace(
        'data-md-component="search" role="dialog"',
        'data-md-component="search" role="dialog" aria-label="Search"',
    )
