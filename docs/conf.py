"""The site: ``sphinx-build -W docs docs/_build/html``, with ``jaxcluster[docs]`` installed.

NOTEBOOKS=run executes the notebooks again, on clusters of this machine; else they are shown without
outputs (``tests/notebooks`` executes them in the checks).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jaxcluster import __version__

HERE = Path(__file__).parent
REPOSITORY = "https://github.com/jaxcluster/jaxcluster"

project = "jaxcluster"
author = "the jaxcluster developers"
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "images"]
root_doc = "index"

html_theme = "pydata_sphinx_theme"
html_title = "jaxcluster"
html_static_path: list[str] = []
html_theme_options: dict[str, Any] = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
}
html_show_sourcelink = False

# The pages are Markdown as GitHub shows it: their links to headings are checked here.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb", ".rst": "restructuredtext"}

nb_execution_mode = "force" if os.environ.get("NOTEBOOKS") == "run" else "off"
nb_execution_timeout = 300
nb_execution_excludepatterns = ["notebooks/several_hosts.ipynb"]  # it needs hosts
nb_execution_raise_on_error = True
nb_merge_streams = True
# What the notebooks have beside text and figures: the HTML of our views is shown instead.
suppress_warnings = ["mystnb.unknown_mime_type", "mystnb.lexer"]

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
linkcheck_anchors = False


def _bring_notebooks() -> None:
    """The notebooks lie beside the docs; the site has them among its own pages."""
    there = HERE / "notebooks"
    there.mkdir(exist_ok=True)
    for notebook in sorted((HERE.parent / "notebooks").glob("*.ipynb")):
        text = notebook.read_text().replace("](../docs/", "](../")
        (there / notebook.name).write_text(text)


_bring_notebooks()


def _link_notebooks(_app: Any, _page: str, source: list[str]) -> None:
    """On GitHub the notebooks lie beside the docs, here among them."""
    source[0] = source[0].replace("../notebooks/", "notebooks/")


def setup(app: Any) -> None:
    app.connect("source-read", _link_notebooks)
