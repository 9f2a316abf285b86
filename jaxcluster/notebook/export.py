"""``%jaxcluster export``: the cells that the ranks have run, as a script.

IPython's own syntax becomes Python, or a comment with the line as it was typed. The script runs
under ``jaxcluster run``, ``srun`` and ``mpiexec``, and on TPU hosts.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import textwrap
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from IPython.core.inputtransformer2 import TransformerManager

from jaxcluster import arguments, cluster
from jaxcluster.errors import UsageError
from jaxcluster.ranks import parse_ranks
from jaxcluster.text import plural

EXAMPLE = "%jaxcluster export train.py"
QUIET = ("print", "display", "subprocess.run", "os.chdir", "globals().update")  # calls
TIMERS = ("time", "capture", "prun")  # magics above a cell whose body is Python

# As IPython's transformer writes a magic, or a line for the shell.
_MAGIC = re.compile(r"^(?P<at>\s*)(?P<to>.*?)get_ipython\(\)\.(?P<kind>\w+)\((?P<words>.*)\)$")
_NO_COMMAND = re.compile(r"[{$]|^\s*(pip|conda|mamba|uv)\b")  # a notebook's values, an installer
_FUTURE = re.compile(r"^from __future__ import .*$", re.MULTILINE)

HEAD = '''"""The %%spmd cells of {notebook}, in the order in which they ran: by %jaxcluster export.

    {command}
        # with --launcher ssh, slurm, mpi and others on several hosts
    srun -n {n} python {path}      # in a Slurm allocation
    mpiexec -n {n} python {path}   # Open MPI 4, on rank 0's host; otherwise --launcher mpi
    python {path}                # on every host of a TPU slice
{missing}"""
{futures}
import os
import runpy
import subprocess
import sys

{display}import jax

if not jax.distributed.is_initialized():  # jaxcluster run has done it
{devices}    try:
        jax.distributed.initialize()
    except (ValueError, RuntimeError) as error:  # by hand, MPICH, Open MPI 5
        raise SystemExit(
            f"jax.distributed.initialize() failed: {{error}}\\nThis script is started by: "
            "jaxcluster run SCRIPT   or, by any MPI: jaxcluster run --launcher mpi SCRIPT"
        ) from None
{slice}'''
SHOW = '''
def _nb_show(value):
    """What the notebook showed under a cell: its last expression, by process 0."""
    from jax.experimental import multihost_utils

    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        value = multihost_utils.process_allgather(value, tiled=True)
    if value is not None and jax.process_index() == 0:
        print(repr(value), flush=True)
'''
# XLA takes each machine's CPU devices for a slice, and has no option for that (jax 0.10.2, 0.12).
ONE_SLICE = """    if jax.default_backend() == "cpu":  # else jax.make_mesh refuses several hosts
        for name in ("slice_index", "partition_index"):
            setattr(type(jax.devices()[0]), name, property(lambda device: 0))
"""


@dataclass
class Cell:
    """A cell of the ranks: its number, what stands behind ``%%spmd``, and what stands below it."""

    number: int
    options: str
    body: str
    state: Literal["runs", "ok", "failed"] = "ok"


@dataclass(frozen=True)
class Push:
    """Names that came from the notebook, each with what it was."""

    names: dict[str, str]


@dataclass
class Log:
    """What one cluster was asked to do, in order.

    Attributes:
      ranks: how many there are; 0 where that is not known.
      cpu_devices: of each rank; 0 where they are not CPUs.
    """

    steps: list[Cell | Push] = field(default_factory=list)
    ranks: int = 0
    cpu_devices: int = 0


class Logs:
    """A log for each cluster; ``last`` is that of the cluster that was used last."""

    def __init__(self) -> None:
        self._by_cluster: weakref.WeakKeyDictionary[cluster.Cluster, Log]
        self._by_cluster = weakref.WeakKeyDictionary()
        self.last = Log()

    def add(self, running: cluster.Cluster, step: Cell | Push) -> None:
        """Note a step; a cell's ``state`` is its caller's to set."""
        self.last = self._by_cluster.setdefault(running, Log())
        devices = {len(reply.devices) for reply in running.record.devices}
        on_cpu = running.spec.platform == "cpu" and len(devices) == 1
        self.last.ranks = running.num_processes
        self.last.cpu_devices = devices.pop() if on_cpu else 0
        self.last.steps.append(step)

    def forget(self, running: cluster.Cluster) -> None:
        """Its ranks have empty namespaces now."""
        self._by_cluster.pop(running, None)
        self.last = Log()


def write(name: str, log: Log, *, force: bool = False) -> list[str]:
    """Write the script, and return what is to be said of it, a line each.

    Raises:
      UsageError: there is nothing to write, or a file already is where it would be.
    """
    path = Path(name).expanduser()
    if path.suffix != ".py":
        raise UsageError(f"{name} is not the name of a script, which ends in .py.", EXAMPLE)
    if path.exists() and not force:
        raise UsageError(
            f"{name} already exists, and was not changed.",
            f"To overwrite it: %jaxcluster export {name} --force",
        )
    notebook = os.path.basename(os.environ.get("JPY_SESSION_NAME", "")) or "this notebook"
    cells = [step for step in log.steps if isinstance(step, Cell)]
    if not any(one.state == "ok" for one in cells):
        raise UsageError(f"No %%spmd cell of {notebook} has run since its ranks started.", EXAMPLE)
    text, notes = script(log, notebook, name)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{name} can't be written: {error.strerror}.", EXAMPLE) from None
    left_out = "Left out: cell [{}], which still runs. Export again later."
    return notes + [left_out.format(one.number) for one in cells if one.state == "runs"]


# --------------------------------------------------------------------------- pure


def script(log: Log, notebook: str, path: str) -> tuple[str, list[str]]:
    """The script of what has ended well, and what is to be said of it, a line each.

    Raises:
      UsageError: the cells are not Python together.
    """
    comments: list[str] = []
    pushed: list[str] = []
    parts: list[str] = []
    for step in log.steps:
        if isinstance(step, Push):
            pushed += [told for told in step.names.values() if told not in pushed]
            lines = [f"# {n} = ... : {told}, pushed" for n, told in step.names.items()]
            parts.append("\n".join(["# %% from the notebook", *lines]))
        elif step.state == "ok":
            title = f"# %% [{step.number}] {step.options.strip()}".rstrip()
            parts.append(f"{title}\n{_python(step, log.ranks, comments)}".rstrip("\n"))
    body = "\n\n".join(parts)
    ranks, devices = log.ranks or "N", log.cpu_devices
    options = f" -n {ranks}" * bool(log.ranks) + f" --devices-per-process {devices}" * (devices > 1)
    config = f'    jax.config.update("jax_num_cpu_devices", {devices})\n'
    missing = ["", "Pushed from the notebook. Set below before use:", *(f"    {p}" for p in pushed)]
    head = HEAD.format(
        notebook=notebook.replace("\\", "/").replace('"', "'"),
        command=(command := f"jaxcluster run{options} {path}"),
        n=ranks,
        path=path,
        missing="\n".join([*missing, ""]) if pushed else "",
        futures="\n".join(["", *dict.fromkeys(_FUTURE.findall(body)), ""]),
        devices=config if devices > 1 else "",
        slice=ONE_SLICE if devices and "make_mesh" in body else "",
        display="from IPython.display import display\n" if "display(" in body else "",
    )
    shown, without_futures = SHOW * ("_nb_show(" in body), _FUTURE.sub(r"# \g<0>", body)
    text = f"{head}{shown}\n\n{without_futures}\n"
    try:
        compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise UsageError(
            f"These cells, one after the other, are not valid Python: {error}.",
            "Fix them in the notebook: together they must be one valid script.",
        ) from None
    cells = plural(sum(isinstance(step, Cell) and step.state == "ok" for step in log.steps), "cell")
    notes = [f"{path}: {cells} of {notebook}, in the order in which they ran."]
    if pushed:
        notes.append(f"Set there what was pushed from the notebook: {', '.join(pushed)}.")
    if comments:
        notes.append(f"Left as comments: {'; '.join(dict.fromkeys(comments))}.")
    return text, [*notes, f"Run it: {command}"]


def describe(name: str, value: object) -> str:
    """A pushed name, with its value's type and shape."""
    shape = getattr(value, "shape", None)
    told = f" of shape {shape}" if isinstance(shape, tuple) else ""
    return f"{name} ({type(value).__name__}{told})"


def _python(cell: Cell, num_processes: int, comments: list[str]) -> str:
    """A cell as Python; what becomes a comment is added to ``comments``."""
    ranks = arguments.Parser("%%spmd").read(cell.options).ranks
    body, above = cell.body.lstrip("\n"), ""
    while body.startswith("%%"):
        line, _, rest = body.partition("\n")
        comments.append(line)
        if line[2:].split()[0] not in TIMERS:
            return above + _commented(body)
        above, body = f"{above}# {line}\n", rest.lstrip("\n")
    lines = TransformerManager().transform_cell(body).splitlines()
    text = "\n".join(_line(line, comments) for line in lines)
    try:
        tree = ast.parse(text)
        compile(text, "<cell>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):  # such as an await
        comments.append(f"cell [{cell.number}], which is Python only in a notebook")
        return above + _commented(body)
    if ranks is None:
        return above + _shown(text, tree, "_nb_show({})")
    text = _shown(text, tree, "print(repr({}), flush=True)")
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant | ast.JoinedStr))
    if any(node.lineno != node.end_lineno for node in texts):
        text = ast.unparse(ast.parse(text))  # texts of several lines can't be indented
    own = tuple(parse_ranks(ranks, num_processes or 1 << 20))
    indented = textwrap.indent(text if tree.body else f"{text}\npass", "    ")
    return f"{above}if jax.process_index() in {own}:\n{indented}"


def _commented(body: str) -> str:
    return textwrap.indent(body.rstrip("\n"), "# ", lambda line: True)


def _line(line: str, comments: list[str]) -> str:
    """A line of transformed source, with a magic in it as Python, or else as a comment."""
    if (found := _MAGIC.match(line)) is None:
        return line
    words = [str(word) for word in ast.literal_eval(f"[{found['words']}]")]
    to = found["to"]
    if found["kind"] != "run_line_magic":
        typed = f"!{words[0]}"
        kept, shown = "subprocess.getoutput({!r}).splitlines()", "subprocess.run({!r}, shell=True)"
        made = None if _NO_COMMAND.search(words[0]) else (kept if to else shown).format(words[0])
    else:
        typed = f"%{' '.join(words)}".rstrip()
        made = _magic(words[0], words[1])
    if made is None:
        comments.append(typed)
        made = f"None  # {typed}" if to else f"pass  # {typed}" if found["at"] else f"# {typed}"
    elif words[0] == "time":
        comments.append("%time")
        made = "\n".join(_line(one, comments) for one in made.splitlines())
    return f"{found['at']}{to}{made}"


def _magic(name: str, rest: str) -> str | None:
    if name == "time" and rest and not rest.startswith("-"):
        return TransformerManager().transform_cell(rest).strip("\n")
    if not rest or rest.startswith("-") or re.search(r"[{$]", rest):
        return None
    if name == "cd":
        return f"os.chdir(os.path.expanduser({rest.strip()!r}))"
    if name == "run":
        path, *argv = shlex.split(rest)
        given = f"sys.argv = {[path, *argv]}; " if argv else ""
        return f"{given}globals().update(runpy.run_path({path!r}, run_name='__main__'))"
    variable, _, value = rest.partition("=") if "=" in rest else rest.partition(" ")
    if name in ("env", "set_env") and value:
        return f"os.environ[{variable.strip()!r}] = {value.strip()!r}"
    return None


def _shown(text: str, tree: ast.Module, show: str) -> str:
    """The cell with its last expression shown, as under the notebook's cell."""
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return text
    call = getattr(last.value, "func", None)
    if ast.unparse(call or last.value) in QUIET:
        return text
    lines = [line.encode() for line in text.split("\n")]
    first, end = last.lineno - 1, (last.end_lineno or 1) - 1
    after = lines[end][last.end_col_offset :]
    if after.lstrip().startswith(b";"):
        return text
    value = ast.get_source_segment(text, last) or ""
    made = show.format(f"({value})" if isinstance(last.value, ast.Tuple) else value)
    lines[first : end + 1] = [lines[first][: last.col_offset] + made.encode() + after]
    return b"\n".join(lines).decode()
