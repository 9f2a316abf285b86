"""The documentation: built as a site with warnings as errors, and no link of it leads nowhere."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from helpers import python

pytestmark = pytest.mark.any_jax

TOP = Path(__file__).parents[2]
NOTEBOOKS = sorted((TOP / "notebooks").glob("*.ipynb"))
FENCE = re.compile(r"^(```|:::).*?^\1", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    own = [TOP / "README.md", TOP / "labextension" / "README.md"]
    return [*own, *(TOP / "docs").glob("*.md"), *(TOP / "docs" / "how-to").glob("*.md")]


def anchors(page: Path) -> set[str]:
    """Its headings as GitHub makes anchors of them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(text: str, here: Path) -> list[str]:
    """The links of a text that lead nowhere in this repository."""
    found = []
    for target in LINK.findall(FENCE.sub("", text)):
        path, _, anchor = target.partition("#")
        if re.match(r"https?:", target):
            continue
        page = (here.parent / path) if path else here
        if not page.exists() or (anchor and anchor not in anchors(page)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(TOP)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    assert broken(page.read_text(), page) == []


@pytest.mark.parametrize(
    "notebook", sorted((TOP / "notebooks").glob("*.ipynb")), ids=lambda n: n.name
)
def test_links_of_notebooks_lead_somewhere(notebook: Path) -> None:
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "markdown":
            assert broken("".join(cell["source"]), notebook) == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    page = TOP / "README.md"
    assert broken("[a](docs/no.md) [b](docs/lab.md#no) [c](docs/lab.md)", page) == [
        "docs/no.md",
        "docs/lab.md#no",
    ]


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("myst_nb", reason="jaxcluster[docs] is not installed")
    # A copy, since the notebooks are brought beside the pages.
    for name in ("docs", "notebooks"):
        skipped = shutil.ignore_patterns("_build", ".ipynb_checkpoints")
        shutil.copytree(TOP / name, tmp_path / name, ignore=skipped)
    built = tmp_path / "site"
    words = ("-W", "--keep-going", "-q", "-b", "html", str(tmp_path / "docs"), str(built))
    made = python("-m", "sphinx", *words)
    assert made.returncode == 0, made.stderr
    for page in ("index", "api", "how-to/train", "notebooks/quickstart", "lab", "search"):
        assert (built / f"{page}.html").exists()
    shown = (built / "api.html").read_text()
    for name in ("jaxcluster.start", "jaxcluster.Cluster.run", "jaxcluster.errors.Divergence"):
        assert f'id="{name}"' in shown
    index = (built / "searchindex.js").read_text()
    assert "lockstep" in index
