"""The views of arrays, meshes and memory, for every frontend.

The default display is not a widget: a widget is gone when a saved notebook is opened again, while a
MIME bundle stays. Where nothing draws its JSON, the frontend takes the HTML or the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxcluster.cluster import array_queries
from jaxcluster.errors import JaxClusterError
from jaxcluster.model.layout import ArrayLayout, CheckResult, TreeLayout
from jaxcluster.views import arrays, blocks, document
from jaxcluster.views.blocks import Block
from jaxcluster.views.displays import Bundle

if TYPE_CHECKING:
    from jaxcluster.cluster import Cluster

Answer = Callable[[array_queries.Question], Any]


@dataclass(frozen=True)
class View:
    """Something to show, in all the forms that a frontend may ask for.

    Attributes:
      document: JSON for ``static/shardview``.
      blocks: the same for terminals and logs, and for saved and untrusted notebooks.
    """

    document: document.Document
    blocks: Sequence[Block]
    answer: Answer | None = None

    @property
    def text(self) -> str:
        return blocks.text(self.blocks)

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        return {document.MIME: self.document, **blocks.bundle(self.blocks)}

    def widget(self) -> Any:
        """An anywidget of it, whose statistics and values come from the ranks on demand."""
        from jaxcluster.views.widget import ShardWidget

        return ShardWidget(self.document, blocks.html(self.blocks), self.answer)


def shards(cluster: Cluster, name: str, *, check: bool = False) -> View:
    """The view of an array or a pytree of the ranks.

    Args:
      name: a variable, or a part of one: ``params['w']``. ``""``: what the last cell ended in.
      check: compare all copies and look for NaN, too; that reads every byte.

    Raises:
      UsageError: no rank has it, or it holds no array.
    """
    layout = array_queries.look(cluster.world, name)
    checked = array_queries.check(cluster.world, name) if check else None
    return layout_view(layout, checked, answers(cluster, name))


def layout_view(
    layout: ArrayLayout | TreeLayout,
    check: CheckResult | None = None,
    answer: Answer | None = None,
) -> View:
    """The view of a layout."""
    if isinstance(layout, TreeLayout):
        return View(document.tree(layout, check), arrays.tree(layout, check), answer)
    return View(document.array(layout, check), arrays.array(layout, check), answer)


def mesh(cluster: Cluster, name: str | None = None) -> View:
    """The view of the device meshes among the ranks' variables."""
    return tables(arrays.mesh(array_queries.meshes(cluster.world, name)))


def memory(cluster: Cluster) -> View:
    """The view of what every device holds."""
    return tables(arrays.memory(array_queries.memory(cluster.world)))


def tables(shown: Sequence[Block]) -> View:
    """The view of lines and tables."""
    return View(document.tables(shown), shown)


def show(view: View, rich: bool) -> None:
    """Display a view: as a bundle in a notebook, as text in a terminal."""
    if rich:
        from IPython.display import display

        display(view)
    else:
        print(view.text)


# --------------------------------------------------------------------------- on demand


def answers(cluster: Cluster, name: str) -> Answer:
    """Answers what a widget asks for, as JSON: stats, peek, check and look."""

    def answer(question: array_queries.Question) -> Any:
        world = cluster.world  # its ranks as they are now
        about = question.get("name", name)
        match question["op"]:
            case "stats":
                where = question["rank"], question["device"]
                found = array_queries.statistics(world, about, *where)
                return dataclasses.asdict(found[0]) if found else None
            case "peek":
                cut = question["start"], question["stop"]
                where = question["rank"], question["device"]
                values = array_queries.peek(world, about, *where, *cut)
                return {"shape": list(values.shape), "values": spell(values)}
            case "check":
                return document.checked(array_queries.check(world, about))
            case "look":
                return layout_view(array_queries.look(world, about)).document
        raise JaxClusterError(f"There is no request {question['op']!r}.")

    return answer


def spell(values: np.ndarray[Any, Any]) -> list[str]:
    """Values as short texts: JSON has no NaN, and a reader wants no 17 digits."""
    flat: Sequence[Any] = values.reshape(-1).tolist()
    return [f"{v:.5g}" if isinstance(v, float | complex) else str(v) for v in flat]
