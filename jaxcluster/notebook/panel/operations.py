"""The operations that a page may ask for.

Each runs on its own thread, while the notebook's main thread may be in a cell.
"""

from __future__ import annotations

import hashlib
import json
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from jaxcluster import cluster
from jaxcluster.cluster import events
from jaxcluster.errors import ClusterExists, JaxClusterError, UsageError
from jaxcluster.model.outputs import CellRecord
from jaxcluster.notebook.panel.model import Model
from jaxcluster.options import arguments
from jaxcluster.ranks import name_ranks
from jaxcluster.views import arrays, messages, shards, status
from jaxcluster.views.cell_outputs import MOST_CHARS, in_notebook, notebook_outputs
from jaxcluster.views.messages import SHARDS_MIME, Document, Output


class Operations:
    """A page's requests, with their results. A method's parameters are the request's arguments."""

    def __init__(self, model: Model, greet: Callable[[], messages.Hello]) -> None:
        self._model, self._greet = model, greet

    def __call__(self, op: str, args: Any) -> Any:
        """The result of one operation.

        Raises:
          JaxClusterError: why it can't be done, and what to do instead.
        """
        try:
            given = msgspec.convert(args, ARGUMENTS[op])
        except (KeyError, msgspec.ValidationError) as error:
            why = f" with these arguments: {error}" if op in ARGUMENTS else ""
            raise JaxClusterError(
                f"This kernel's jaxcluster has no {op!r}{why}.",
                "Install the same version of jaxcluster for the kernel and for JupyterLab.",
            ) from None
        return getattr(self, op)(**msgspec.structs.asdict(given))

    # ------------------------------------------------------------------ clusters

    def hello(self) -> messages.Hello:
        """All, also if nothing has changed."""
        return self._greet()

    def auto(self, on: bool) -> None:
        """Whether every following cell is an %%spmd cell."""
        self._model.auto.on = on

    def start(self, line: str) -> str:
        """``line`` is what would follow %jaxcluster start. The result is its last line."""
        parsed = arguments.Parser("%jaxcluster start").read(line)
        _check_alone()
        spec = cluster.make_spec(**arguments.start_options(parsed))
        return cluster.dry_run(spec) if parsed.dry_run else cluster.start_once(spec)

    def cancel(self) -> None:
        """End the start, or the restart, that goes on."""
        course = events.course
        if course is None or course.failure:
            raise UsageError("No cluster is being started.")
        course.stopped.set()

    def attach(self, name: str) -> str:
        """Run this notebook's cells on a cluster that runs, connected to already or not."""
        return f"Cells of this notebook now run on {cluster.attach(name).name!r}."

    def stop(self, name: str) -> str:
        """Stop a cluster, also one that this kernel is not connected to."""
        return cluster.stop_by_name(name)

    def restart(self, clean: bool) -> str:
        """Give the ranks new processes, with their variables or without."""
        running = cluster.current()
        _check_alone()
        kept = running.restart(clean=clean)
        return f"{running.summary()}\n{kept}"

    def interrupt(self) -> list[int]:
        """Interrupt what runs; the result is the ranks that were interrupted."""
        running = cluster.current()
        cells = running.cells
        hit = {rank for c in cells for rank in c.record.ranks if rank not in c.record.replies}
        for cell in cells:
            cell.stop()  # as the stop button does: this ends their questions, too
        # Else it is another notebook's cell, or one that nobody waits for.
        return sorted(hit) or running.interrupt()

    # ------------------------------------------------------------------ texts

    def logs(self, rank: int | None, lines: int) -> str:
        """The last lines of a rank's log; if None, of all ranks, each line with its rank."""
        running = cluster.current()
        if rank is not None:
            return running.logs(rank, lines)[-MOST_CHARS:]
        each = max(20, lines // running.num_processes)
        logged = [
            f"[{one}] {line}"
            for one in range(running.num_processes)
            for line in running.logs(one, each).splitlines()
        ]
        return "\n".join(logged)[-MOST_CHARS:]

    def stacks(self) -> str:
        """The stacks of all ranks."""
        return status.stacks(cluster.current().stacks())

    def outputs(self, cell_id: str, rank: int) -> list[Output]:
        """The output of one rank in a cell."""
        record = self._record(cell_id)
        if rank not in record.records:
            raise UsageError(
                f"Rank {rank} did not run that cell.", f"It ran on {name_ranks(record.ranks)}."
            )
        return notebook_outputs(record.records[rank], record.execution_count)

    def _record(self, cell_id: str) -> CellRecord:
        record = self._model.record(cell_id)
        if record is None:
            raise UsageError("The outputs of that cell are no longer kept.", "Run it again.")
        return record

    def shown(self, cell_id: str, mark: str) -> messages.Shown:
        """The output below a cell, for a page that has not seen it run.

        ``mark`` is the last answer's, or "".
        """
        record = self._record(cell_id)
        is_over = record.is_over  # before its outputs are looked at: it may end meanwhile
        outputs = in_notebook(record)
        now = hashlib.sha256(json.dumps(outputs).encode()).hexdigest()
        return messages.Shown(
            record.execution_count, is_over, now, None if now == mark else outputs
        )

    # ------------------------------------------------------------------ arrays

    def variables(self) -> list[messages.Variable]:
        """The arrays of the ranks, and what has arrays in it."""
        return arrays.variables(cluster.current().world)

    def ask(self, name: str, question: messages.Question) -> Any:
        """static/shardview's question. ``name`` may be a part: params['w']."""
        return shards.answer(cluster.current(), name, question)

    def mesh(self) -> Document:
        """The document of all meshes."""
        return Document(shards.mesh(cluster.current())[SHARDS_MIME])

    def memory(self) -> Document:
        """The document of the bytes on each device."""
        return Document(shards.memory(cluster.current())[SHARDS_MIME])


def _check_alone() -> None:
    """Refuse to begin a start or restart while another one goes on.

    Raises:
      ClusterExists: one does.
    """
    if cluster.is_starting() or any(c.is_restarting for c in cluster.connected().values()):
        raise ClusterExists(
            f"A cluster is already being started ({events.progress or '...'}).",
            "Wait until it runs, or stop the cell that starts it.",
        )


def _arguments(operation: Callable[..., Any]) -> type[msgspec.Struct]:
    """The type of a request's arguments: a field for each parameter of the operation."""
    fields = typing.get_type_hints(operation)
    del fields["return"]
    return msgspec.defstruct(operation.__name__, [*fields.items()])


ARGUMENTS = {name: _arguments(one) for name, one in vars(Operations).items() if name[0] != "_"}
