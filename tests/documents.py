"""Notebooks as documents: written, run, and read as a user would.

Each function imports what it needs: nbformat takes seconds, in each process of the tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers import plain


def document_of(*sources: str, **metadata: Any) -> Any:
    """A notebook with these code cells, which have not run."""
    from nbformat import v4

    return v4.new_notebook(cells=[v4.new_code_cell(one) for one in sources], metadata=metadata)


def read_document(path: Path) -> Any:
    """A notebook that keeps the format's rules."""
    import nbformat

    document = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(document)
    return document


def write_document(document: Any, path: Path) -> None:
    import nbformat

    nbformat.write(document, path)


def document_with(*outputs: tuple[str, dict[str, Any]]) -> Any:
    """A valid notebook with one cell, which has put these out: kinds and contents."""
    import nbformat

    document = document_of("%%spmd")
    document.cells[0].outputs = [nbformat.v4.new_output(kind, **data) for kind, data in outputs]
    nbformat.validate(document)
    return document


def html_of(document: Any) -> str:
    """The page that a user sends to others."""
    from nbconvert import HTMLExporter

    html: str = HTMLExporter().from_notebook_node(document)[0]
    return html


def code_cells(document: Any) -> list[Any]:
    """Its code cells after a run. Those that are marked so have failed, and no others."""
    cells = [cell for cell in document.cells if cell.cell_type == "code"]
    for cell in cells:
        failed = any(output.output_type == "error" for output in cell.outputs)
        assert failed == ("raises-exception" in cell.metadata.get("tags", [])), text_under(cell)
    return cells


def text_under(cell: Any) -> str:
    """All text that stands under a cell, as a user would read it."""
    text = ""
    for output in cell.outputs:
        if output.output_type == "stream":
            text += output.text
        elif output.output_type == "error":
            text += "\n".join(output.traceback)
        else:
            text += output.data.get("text/plain", "") + "\n"
    return plain(text)
