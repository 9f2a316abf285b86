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
from collections.abc import Sequence
from dataclasses import dataclass, field
from inspect import CO_COROUTINE
from pathlib import Path
from typing import Literal

from IPython.core.inputtransformer2 import TransformerManager

from jaxcluster import arguments, cluster
from jaxcluster.errors import UsageError
from jaxcluster.ranks import parse_ranks
from jaxcluster.text import plural

EXAMPLE = "%jaxcluster export train.py"
AWAITS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
QUIET = ("print", "display", "subprocess.run", "os.chdir", "globals().update")  # calls
TIMERS = ("time", "capture", "prun")  # magics above a cell whose body is Python

# As IPython's transformer writes a magic, or a line for the shell.
_MAGIC = re.compile(r"^(?P<at>\s*)(?P<to>.*?)get_ipython\(\)\.(?P<kind>\w+)\((?P<words>.*)\)$")
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


@dataclass(frozen=True)
class World:
    """The notebook's ranks (0: not known), and the devices of each if they are CPUs."""

    ranks: int = 0
    cpu_devices: int = 0


@dataclass
class Log:
    """What one cluster was asked to do, in order."""

    world: World = field(default_factory=World)
    steps: list[Cell | Push] = field(default_factory=list)


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
        self.last.world = World(running.num_processes, devices.pop() if on_cpu else 0)
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
    steps = [step for step in log.steps if isinstance(step, Push) or step.state == "ok"]
    if not any(isinstance(step, Cell) for step in steps):
        raise UsageError(f"No %%spmd cell of {notebook} has run since its ranks started.", EXAMPLE)
    text, notes = script(steps, log.world, notebook, name)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{name} can't be written: {error.strerror}.", EXAMPLE) from None
    running = [step for step in log.steps if isinstance(step, Cell) and step.state == "runs"]
    for one in running:
        notes.insert(1, f"Left out: cell [{one.number}], which still runs. Export again later.")
    return notes


# --------------------------------------------------------------------------- pure


def script(
    steps: Sequence[Cell | Push], world: World, notebook: str, path: str
) -> tuple[str, list[str]]:
    """The script, and what is to be said of it, a line each.

    Raises:
      UsageError: a cell is not Python.
    """
    comments: list[str] = []
    missing: list[str] = []
    parts: list[str] = []
    for step in steps:
        if isinstance(step, Push):
            missing += [told for told in step.names.values() if told not in missing]
            lines = [
                f"# {n} = ... : {told}, pushed from the notebook" for n, told in step.names.items()
            ]
            parts.append("\n".join(["# %% pushed", *lines]))
        else:
            title = f"# %% [{step.number}] {step.options.strip()}".rstrip()
            parts.append(f"{title}\n{_python(step, world, comments)}".rstrip("\n"))
    text = "\n\n".join(parts)
    futures = list(dict.fromkeys(_FUTURE.findall(text)))
    ranks, devices = world.ranks or "N", world.cpu_devices
    command = f"jaxcluster run{f' -n {ranks}' if world.ranks else ''} "
    command += f"--devices-per-process {devices} {path}" if devices > 1 else path
    config = f'    jax.config.update("jax_num_cpu_devices", {devices})\n'
    top = [
        "",
        "Pushed from the notebook. Set below before use:",
        *(f"    {m}" for m in missing),
        "",
    ]
    head = HEAD.format(
        notebook=notebook.replace("\\", "/").replace('"', "'"),
        command=command,
        n=ranks,
        path=path,
        missing="\n".join(top) if missing else "",
        futures="\n".join(["", *futures, ""]),
        devices=config if devices > 1 else "",
        slice=ONE_SLICE if devices and "make_mesh" in text else "",
        display="from IPython.display import display\n" if "display(" in text else "",
    )
    head += SHOW * ("_nb_show(" in text)
    text = f"{head}\n\n" + _FUTURE.sub(r"# \g<0>", text) + "\n"
    try:
        compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise UsageError(
            f"These cells, one after the other, are not valid Python: {error}.",
            "Fix them in the notebook: together they must be one valid script.",
        ) from None
    cells = plural(sum(isinstance(step, Cell) for step in steps), "cell")
    notes = [f"{path}: {cells} of {notebook}, in the order in which they ran."]
    if missing:
        notes.append(f"Set there what was pushed from the notebook: {', '.join(missing)}.")
    if comments:
        notes.append(f"Left as comments: {'; '.join(dict.fromkeys(comments))}.")
    return text, [*notes, f"Run it: {command}"]


def describe(name: str, value: object) -> str:
    """A pushed name, with its value's type and shape."""
    shape = getattr(value, "shape", None)
    told = f" of shape {shape}" if isinstance(shape, tuple) else ""
    return f"{name} ({type(value).__name__}{told})"


def _python(cell: Cell, world: World, comments: list[str]) -> str:
    """A cell as Python; what becomes a comment is added to ``comments``."""
    ranks = arguments.Parser("%%spmd").read(cell.options).ranks
    body, above = cell.body.lstrip("\n"), ""
    while body.startswith("%%"):
        line, _, rest = body.partition("\n")
        comments.append(line)
        if line[2:].split()[0] not in TIMERS:
            return above + _commented(body)
        above, body = f"{above}# {line}\n", rest.lstrip("\n")
    try:
        lines = TransformerManager().transform_cell(body).splitlines()
        text = "\n".join(_line(line, comments) for line in lines)
        tree = compile(text, "<cell>", "exec", AWAITS | ast.PyCF_ONLY_AST, dont_inherit=True)
        if compile(text, "<cell>", "exec", AWAITS, dont_inherit=True).co_flags & CO_COROUTINE:
            comments.append(f"cell [{cell.number}], which awaits")
            return above + _commented(body)
        text = _shown(
            text, tree, "_nb_show({})" if ranks is None else "print(repr({}), flush=True)"
        )
        texts = (n for n in ast.walk(tree) if isinstance(n, ast.Constant | ast.JoinedStr))
        if ranks is not None and any(one.lineno != one.end_lineno for one in texts):
            text = ast.unparse(ast.parse(text))  # texts of several lines can't be indented
        compile(text, "<cell>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        said, at = getattr(error, "msg", error), getattr(error, "lineno", None)
        raise UsageError(
            f"Cell [{cell.number}] is not Python: {said}{f' (line {at})' if at else ''}.",
            "Fix it in the notebook, and run it again.",
        ) from None
    if ranks is not None:
        own = tuple(parse_ranks(ranks, world.ranks or 1 << 20))
        nothing = "" if tree.body else "\n    pass"
        text = f"if jax.process_index() in {own}:\n{textwrap.indent(text, '    ')}{nothing}"
    return above + text


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
        made = _shell(words[0], is_kept=bool(to))
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


def _shell(command: str, *, is_kept: bool) -> str | None:
    if re.search(r"[{$]", command) or re.match(r"\s*(pip|conda|mamba|uv)\b", command):
        return None
    if is_kept:
        return f"subprocess.getoutput({command!r}).splitlines()"
    return f"subprocess.run({command!r}, shell=True)"


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
