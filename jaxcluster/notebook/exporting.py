"""``%jaxcluster export``: what this notebook has had its ranks do, and the script of that."""

from __future__ import annotations

import contextlib
import json
import os
import re
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxcluster import arguments, cluster
from jaxcluster.errors import UsageError
from jaxcluster.model import rewrite
from jaxcluster.notebook import export

EXAMPLE = "%jaxcluster export train.py"


@dataclass
class Log:
    """What one cluster was had to do, in order.

    Attributes:
      failed: the places in ``steps`` of what has not ended well.
    """

    world: export.World = field(default_factory=export.World)
    steps: list[export.Cell | export.Push] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)
    _places: dict[int, int] = field(default_factory=dict)  # by the cells' seq
    _going_on: set[int] = field(default_factory=set)  # places, too

    @contextlib.contextmanager
    def running(self, step: export.Cell | export.Push) -> Iterator[None]:
        """A step while it goes on; one that raises does not count."""
        place = len(self.steps)
        self.steps.append(step)
        try:
            yield
        except BaseException:
            self.failed.add(place)
            raise

    def sent(self, seq: int) -> None:
        """The step that goes on has this ``seq`` on the ranks."""
        self._places[seq] = len(self.steps) - 1

    def goes_on(self, seq: int) -> None:
        """That cell runs in the background: whether it ends well is not known yet."""
        self._going_on.add(self._places[seq])

    def has_ended(self, seq: int) -> None:
        """What ran in the background does no longer."""
        self._going_on.discard(self._places[seq])

    def take_back(self, seq: int) -> None:
        """A cell has failed in the background, or was undone; it may be none of this log's."""
        if (place := self._places.get(seq)) is not None:
            self.failed.add(place)

    def good(self) -> list[export.Cell | export.Push]:
        """What has ended well."""
        left_out = self.failed | self._going_on
        return [step for at, step in enumerate(self.steps) if at not in left_out]

    def running_cells(self) -> list[int]:
        """The numbers of the cells that still run in the background, in order."""
        going_on = [self.steps[at] for at in sorted(self._going_on - self.failed)]
        return [step.number for step in going_on if isinstance(step, export.Cell)]


class Logs:
    """A log for each cluster. That of one that is stopped stays, until another is used."""

    def __init__(self) -> None:
        self._by_cluster: weakref.WeakKeyDictionary[cluster.Cluster, Log]
        self._by_cluster = weakref.WeakKeyDictionary()
        self.last = Log()

    def of(self, running: cluster.Cluster) -> Log:
        self.last = self._by_cluster.setdefault(running, Log())
        devices = {len(reply.devices) for reply in running.record.devices}
        on_cpu = running.spec.platform == "cpu" and len(devices) == 1
        self.last.world = export.World(running.num_processes, devices.pop() if on_cpu else 0)
        return self.last

    def forget(self, running: cluster.Cluster) -> None:
        """Its ranks have empty namespaces now."""
        self._by_cluster.pop(running, None)
        self.last = Log()

    def found(self) -> Log:
        """The log of the cluster that cells run on, or ran on last."""
        with contextlib.suppress(Exception):  # no cluster runs, or nothing has run on it
            return self._by_cluster[cluster.current()]
        return self.last


def read_line(line: str) -> Any:
    """What ``%jaxcluster export`` was given."""
    parser = arguments.command_parser("%jaxcluster export", "path")
    parser.example = EXAMPLE
    parser.add_argument("--as-written", nargs="?", const="", metavar="NOTEBOOK")
    parser.add_argument("--force", action="store_true")
    parsed = parser.read(line)
    if parsed.path is None and (parsed.as_written or "").endswith(".py"):
        parsed.path, parsed.as_written = parsed.as_written, ""  # --as-written train.py
    return parsed


def carry_out(parsed: Any, logs: Logs, namespace: Mapping[str, Any]) -> list[str]:
    """Write the script; returns what is to be said of it.

    Args:
      parsed: of ``read_line``.
      namespace: the notebook's.

    Raises:
      UsageError: there is nothing to write, or a file where it would be.
    """
    if parsed.path is None:
        raise UsageError("An export needs the name of a script.", EXAMPLE)
    path = Path(parsed.path).expanduser()
    if path.suffix != ".py":
        raise UsageError(f"{parsed.path} is not the name of a script, which ends in .py.", EXAMPLE)
    if path.exists() and not parsed.force:
        raise UsageError(
            f"{parsed.path} already exists, and was not changed.",
            f"To overwrite it: %jaxcluster export {parsed.path} --force",
        )
    log = logs.found()
    name = os.path.basename(os.environ.get("JPY_SESSION_NAME", "")) or "this notebook"
    steps, order = log.good(), "in the order in which they ran"
    left_out: list[str] = []
    still = [] if parsed.as_written is not None else log.running_cells()
    if parsed.as_written is not None:
        file = find_notebook(parsed.as_written, namespace)
        steps, left_out = as_written(file, log.good())
        order, name = "in the notebook's order", file.name
    if not any(isinstance(step, export.Cell) for step in steps):
        raise UsageError(
            f"No %%spmd cell of {name} "
            + (
                "is there." if parsed.as_written is not None else "has run since its ranks started."
            ),
            f"To export all cells of the notebook, run or not: %jaxcluster export {parsed.path} "
            "--as-written",
        )
    text, notes = export.script(steps, log.world, name, order, str(parsed.path))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{parsed.path} can't be written: {error.strerror}.", EXAMPLE) from None
    if still:
        cells = ", ".join(f"[{number}]" for number in still)
        notes.insert(
            1, f"Left out: cell {cells}, which still runs. Export again when it has ended."
        )
    if left_out:
        notes.insert(1, f"Left out, to be written by hand: {'; '.join(left_out)}.")
    return notes


def find_notebook(named: str, namespace: Mapping[str, Any]) -> Path:
    """The notebook's file, as it was saved last.

    Raises:
      UsageError: it is not known, or not there.
    """
    session = os.environ.get("JPY_SESSION_NAME", "")
    said = [named] if named else [
        str(namespace.get("__vsc_ipynb_file__") or ""), session, os.path.basename(session),
    ]  # fmt: skip
    for one in filter(None, said):
        if (path := Path(one).expanduser()).is_file():
            return path
    raise UsageError(
        f"There is no notebook {named}." if named else "It is not known which notebook this is.",
        "Name it: %jaxcluster export train.py --as-written NOTEBOOK.ipynb",
    )


def as_written(
    path: Path, ran: list[export.Cell | export.Push]
) -> tuple[list[export.Cell | export.Push], list[str]]:
    """The ranks' cells as they are in a notebook, after what was pushed; what is not one of them.

    The latter are cells that come to the ranks by the notebook's own Python, a line each.

    Raises:
      UsageError: it is not a notebook.
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = [
            (cell.get("execution_count") or 0, "".join(cell["source"]))
            for cell in notebook["cells"]
            if cell["cell_type"] == "code"
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not a notebook: {type(error).__name__}: {error}.",
            "%jaxcluster export train.py --as-written NOTEBOOK.ipynb",
        ) from None
    steps: list[export.Cell | export.Push] = [s for s in ran if isinstance(s, export.Push)]
    left_out: list[str] = []
    mode = False
    for number, typed in cells:
        source = _without_timing(typed)
        was_on = mode
        for switch in _SWITCH.finditer(source):
            mode = switch[1] == "on"
        first, _, rest = source.lstrip("\n").partition("\n")
        if first.split()[:1] == ["%%spmd"]:
            steps.append(export.Cell(number, first.removeprefix("%%spmd"), rest))
        elif was_on and not rewrite.stays_in_notebook(source.splitlines()):
            steps.append(export.Cell(number, "", source))
        else:
            for line in source.splitlines():
                if line.startswith("%spmd "):
                    steps.append(_line_step(number, line.removeprefix("%spmd ")))
                elif _BY_PYTHON.search(line):
                    left_out.append(f"{f'[{number}] ' if number else ''}{line.strip()}")
    return steps, left_out


def _line_step(number: int, line: str) -> export.Cell:
    """What stands behind a ``%spmd``."""
    try:
        options, source = arguments.split_spmd(line)
    except UsageError:  # it would have run nothing: ``export`` says why
        options, source = "", line
    return export.Cell(number, options, source)


_SWITCH = re.compile(r"^\s*%jaxcluster\s+auto\s+(on|off)\b", re.MULTILINE)

# A line that runs something on the ranks from within the notebook's own statements.
_BY_PYTHON = re.compile(r"^\s*(\w[^#'\"]*=\s*|%\w+ +)?%{1,2}spmd\b")


def _without_timing(source: str) -> str:
    """A cell without ``%%time`` and the like above its ``%%spmd``."""
    rest = source.lstrip("\n")
    while rest.startswith("%%") and rest[2:].split(None, 1)[:1] != ["spmd"]:
        first, _, rest = rest.partition("\n")
        if first[2:].split(None, 1)[0:1] not in ([one] for one in export.BODIES):
            return source
        rest = rest.lstrip("\n")
    return rest if rest.startswith("%%spmd") else source
