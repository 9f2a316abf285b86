"""The documentation: built as a site with warnings as errors, and no link of it leads nowhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jaxcluster.options.commands import COMMANDS

pytestmark = pytest.mark.any_jax

TOP = Path(__file__).parents[2]
FENCE = re.compile(r"^(```|:::).*?^\1", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
# What a package index needs, where a relative link would lead nowhere.
ABSOLUTE = re.compile(
    r"https://(?:github\.com/jaxcluster/jaxcluster/(?:blob|tree)|"
    r"raw\.githubusercontent\.com/jaxcluster/jaxcluster)/main/(.*)"
)


def pages() -> list[Path]:
    own = [TOP / "README.md", TOP / "labextension" / "README.md"]
    found = sorted((TOP / "docs").rglob("*.md"))
    return [*own, *(page for page in found if "_build" not in page.parts)]


def anchors(page: Path) -> set[str]:
    """Its headings as GitHub makes anchors of them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(text: str, here: Path) -> list[str]:
    """The links of a text that lead nowhere in this repository."""
    found = []
    for target in LINK.findall(FENCE.sub("", text)):
        path, _, anchor = target.partition("#")
        if ours := ABSOLUTE.fullmatch(path):
            page = TOP / ours[1]
        elif re.match(r"https?:", target):
            if not re.fullmatch(r"https?://[\w.-]+\.\w+(:\d+)?(/\S*)?", target):
                found.append(target)
            continue
        else:
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


def test_the_readme_is_short_and_reads_the_same_on_a_package_index() -> None:
    text = (TOP / "README.md").read_text()
    assert len(text.split()) <= 700
    links = LINK.findall(FENCE.sub("", text))
    assert links
    assert [link for link in links if not link.startswith("https://")] == []
    near_the_top = text[: len(text) // 2]
    for command in ("bash notebooks/quickstart.sh", "bash tests/run.sh"):
        assert command in near_the_top


def test_each_page_is_in_the_site() -> None:
    """Sphinx warns of a page in no toctree; each list of links has the pages of its toctree."""
    for index in ("tutorial.md", "how-to/index.md", "reference.md", "explained.md", "index.md"):
        text = (TOP / "docs" / index).read_text()
        (tree,) = re.findall(r"^```\{toctree\}\n:hidden:\n\n(.*?)^```", text, re.S | re.M)
        links = [link.removeprefix("../") for link in LINK.findall(FENCE.sub("", text))]
        linked = [re.sub(r"\.(md|ipynb)$", "", link) for link in links if "images" not in link]
        assert sorted(linked) == sorted(tree.split()), index


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("myst_nb", reason="jaxcluster[docs] is not installed")
    # A copy, since the notebooks are brought beside the pages.
    for name in ("docs", "notebooks"):
        skipped = shutil.ignore_patterns("_build", ".ipynb_checkpoints")
        shutil.copytree(TOP / name, tmp_path / name, ignore=skipped)
    built = tmp_path / "site"
    words = ("-W", "--keep-going", "-q", "-b", "html", str(tmp_path / "docs"), str(built))
    made = subprocess.run(
        [sys.executable, "-m", "sphinx", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert made.returncode == 0, made.stderr
    for page in ("index", "api", "how-to/train", "notebooks/quickstart", "lab", "search", "magics"):
        assert (built / f"{page}.html").exists()
    shown = (built / "api.html").read_text()
    for name in ("jaxcluster.start", "jaxcluster.Cluster.run", "jaxcluster.errors.Divergence"):
        assert f'id="{name}"' in shown
    index = (built / "searchindex.js").read_text()
    assert "refere" in index  # a word stem


def test_each_command_is_in_the_reference() -> None:
    text = (TOP / "docs" / "magics.md").read_text()
    assert [name for name in COMMANDS if not re.search(rf"[ `]{name}\b", text)] == []
