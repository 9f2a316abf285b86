"""``%jaxcluster export``: the cells that the ranks have run, as a script.

IPython's own syntax becomes calls of IPython, as ``jupyter nbconvert --to script`` writes it. The
script runs under ``jaxcluster run``, ``srun`` and ``mpiexec``, and on TPU hosts.
"""

from __future__ import annotations

import ast
import os
import re
import textwrap
import weakref
from dataclasses import dataclass, field
from pathlib import Path

from IPython.core.inputtransformer2 import TransformerManager

from jaxcluster import cluster
from jaxcluster.errors import UsageError
from jaxcluster.options import arguments
from jaxcluster.ranks import parse_ranks
from jaxcluster.text import plural

EXAMPLE = "%jaxcluster export train.py"
QUIET = ("print", "display", "get_ipython().system")  # calls

# As IPython's transformer writes what belongs to a notebook alone: an installation, help.
_NOT_RUN = re.compile(
    r"^(\s*)(get_ipython\(\)\.(?:run_line_magic\('(?:pip|conda|mamba|uv|pinfo2?)'"
    r"|system\('(?:pip|conda|mamba|uv)\b).*)$"
)
_FUTURE = re.compile(r"^from __future__ import .*$", re.MULTILINE)

HEAD = '''"""The %%spmd cells of {notebook}, in the order in which they ran, by %jaxcluster export.

    {command}
        # with --launcher ssh, slurm, mpi and others on several hosts
    srun -n {n} python {path}      # in a Slurm allocation
    mpiexec -n {n} python {path}   # Open MPI 4, on rank 0's host; otherwise --launcher mpi
    python {path}                # on every host of a TPU slice
"""
{futures}
{display}import jax

if not jax.distributed.is_initialized():  # jaxcluster run has done it
{devices}    try:
        jax.distributed.initialize()
    except (ValueError, RuntimeError) as error:  # started by hand, or by another MPI
        raise SystemExit(
            f"jax.distributed.initialize() failed: {{error}}\\nThis script is started by: "
            "jaxcluster run SCRIPT   or, by any MPI: jaxcluster run --launcher mpi SCRIPT"
        ) from None
{slice}{pushed}'''
SHOW = '''
def _nb_show(value):
    """What the notebook showed under a cell: its last expression, by process 0."""
    from jax.experimental import multihost_utils

    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        value = multihost_utils.process_allgather(value, tiled=True)
    if value is not None and jax.process_index() == 0:
        print(repr(value), flush=True)
'''
SHELL = """
import sys

from IPython import get_ipython
from IPython.terminal.interactiveshell import TerminalInteractiveShell
from traitlets.config import Config


class _Shell(TerminalInteractiveShell):
    def showtraceback(self, *args, **named):
        raise  # an error in %run ends the script


if get_ipython() is None:  # what runs the magics
    _Shell.instance(
        user_module=sys.modules["__main__"], config=Config(HistoryManager={"enabled": False})
    )
"""
# XLA takes each machine's CPU devices for a slice, and has no option for that (jax 0.10.2, 0.12).
ONE_SLICE = """    if jax.default_backend() == "cpu":  # else jax.make_mesh refuses several hosts
        for name in ("slice_index", "partition_index"):
            setattr(type(jax.devices()[0]), name, property(lambda device: 0))
"""


@dataclass
class Cell:
    """A cell of the ranks: its number, the options after ``%%spmd``, and its source.

    ``ok`` is whether it has ended well.
    """

    number: int
    options: str
    body: str
    ok: bool = True


@dataclass
class Log:
    """The cells and pushes of one cluster, in order.

    Attributes:
      ranks: how many there are.
      cpu_devices: of each rank; 0 where they are not CPUs.
      pushed: names that came from the notebook.
    """

    cells: list[Cell] = field(default_factory=list)
    ranks: int = 0
    cpu_devices: int = 0
    pushed: list[str] = field(default_factory=list)


class Logs:
    """A log for each cluster; ``last`` is that of the cluster that was used last."""

    def __init__(self) -> None:
        self._by_cluster: weakref.WeakKeyDictionary[cluster.Cluster, Log]
        self._by_cluster = weakref.WeakKeyDictionary()
        self.last = Log()

    def of(self, running: cluster.Cluster) -> Log:
        """The log of a cluster, for its caller to add to."""
        self.last = self._by_cluster.setdefault(running, Log())
        devices = {len(reply.devices) for reply in running.record.devices}
        on_cpu = running.spec.platform == "cpu" and len(devices) == 1
        self.last.ranks = running.num_processes
        self.last.cpu_devices = devices.pop() if on_cpu else 0
        return self.last

    def forget(self, running: cluster.Cluster) -> None:
        """Its ranks have empty namespaces now."""
        self._by_cluster.pop(running, None)
        self.last = Log()


def write(name: str, log: Log, *, force: bool = False) -> list[str]:
    """Write the script, and return notes on it, a line each.

    Raises:
      UsageError: there is nothing to write, or a file already is where it would be.
    """
    path = Path(name).expanduser()
    if path.exists() and not force:
        raise UsageError(
            f"{name} already exists, and was not changed.",
            f"To overwrite it: %jaxcluster export {name} --force",
        )
    notebook = os.path.basename(os.environ.get("JPY_SESSION_NAME", "")) or "this notebook"
    if not any(cell.ok for cell in log.cells):
        raise UsageError(f"No %%spmd cell of {notebook} has succeeded on these ranks.", EXAMPLE)
    text, notes = script(log, notebook, name)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{name} can't be written: {error.strerror}.", EXAMPLE) from None
    return notes


# --------------------------------------------------------------------------- pure


def script(log: Log, notebook: str, path: str) -> tuple[str, list[str]]:
    """The script of the cells that ended well, and notes on it, a line each."""
    comments: list[str] = []
    parts = []
    for cell in (one for one in log.cells if one.ok):
        title = f"# %% [{cell.number}] {cell.options.strip()}".rstrip()
        parts.append(f"{title}\n{_python(cell, log.ranks, comments)}".rstrip("\n"))
    pushed = "".join(f"# {name} = ...\n" for name in dict.fromkeys(log.pushed))
    body = "\n\n".join(parts)
    ranks, devices = log.ranks, log.cpu_devices
    options = f" -n {ranks}" + f" --devices-per-process {devices}" * (devices > 1)
    head = HEAD.format(
        notebook=notebook.replace("\\", "/").replace('"', "'"),
        command=(command := f"jaxcluster run{options} {path}"),
        n=ranks,
        path=path,
        futures="\n".join(["", *dict.fromkeys(_FUTURE.findall(body)), ""]),
        devices=f'    jax.config.update("jax_num_cpu_devices", {devices})\n' * (devices > 1),
        slice=ONE_SLICE if devices and "make_mesh" in body else "",
        pushed=f"\n# Pushed from the notebook: set it here.\n{pushed}" if pushed else "",
        display="from IPython.display import display\n" if "display(" in body else "",
    )
    own = SHELL * ("get_ipython()" in body) + SHOW * ("_nb_show(" in body)
    without_futures = _FUTURE.sub(r"# \g<0>", body)
    text = f"{head}{own}\n\n{without_futures}\n"
    cells = plural(len(log.cells), "cell")
    notes = [f"{path} has {len(parts)} of {cells} of {notebook}: those that ended well."]
    if pushed:
        notes.append(
            f"Set the values that you pushed at its top: {', '.join(dict.fromkeys(log.pushed))}."
        )
    if comments:
        notes.append(f"Left out: {'; '.join(dict.fromkeys(comments))}.")
    return text, [*notes, f"Run it: {command}"]


def _python(cell: Cell, num_processes: int, comments: list[str]) -> str:
    """A cell as Python; what becomes a comment is added to ``comments``."""
    ranks = arguments.Parser("%%spmd").read(cell.options).ranks
    lines = TransformerManager().transform_cell(cell.body.lstrip("\n")).splitlines()
    comments += [line.strip() for line in lines if _NOT_RUN.match(line)]
    text = "\n".join(_NOT_RUN.sub(r"\1pass  # \2", line) for line in lines)
    try:
        tree = ast.parse(text)
        compile(text, "<cell>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):  # such as an await
        comments.append(f"cell [{cell.number}], which is Python only in a notebook")
        return textwrap.indent(cell.body.strip("\n"), "# ", lambda line: True)
    if ranks is None:
        return _shown(text, tree, "_nb_show({})")
    text = _shown(text, tree, "print(repr({}), flush=True)")
    text = ast.unparse(ast.parse(text))  # texts of several lines can't be indented as they are
    own = tuple(parse_ranks(ranks, num_processes))
    return f"if jax.process_index() in {own}:\n{textwrap.indent(text or 'pass', '    ')}"


def _shown(text: str, tree: ast.Module, show: str) -> str:
    """The cell with its last expression shown, as under the notebook's cell."""
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or text.rstrip().endswith(";"):
        return text
    if ast.unparse(getattr(last.value, "func", last.value)) in QUIET:
        return text
    lines = text.split("\n")[: last.lineno]
    lines[-1] = lines[-1].encode()[: last.col_offset].decode()
    return "\n".join(lines) + show.format(ast.unparse(last.value))
