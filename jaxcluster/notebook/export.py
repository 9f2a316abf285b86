"""``%jaxcluster export``: the cells that the ranks have run, as a script.

IPython's own syntax becomes Python, or a comment with the line as it was typed. The script runs
under ``jaxcluster run``, ``srun`` and ``mpiexec``, and on TPU hosts.
"""

from __future__ import annotations

import ast
import cmath
import inspect
import os
import re
import shlex
import textwrap
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from IPython.core.inputtransformer2 import TransformerManager

from jaxcluster import arguments, cluster
from jaxcluster.errors import UsageError
from jaxcluster.ranks import parse_ranks
from jaxcluster.text import is_secret, plural

EXAMPLE = "%jaxcluster export train.py"
SHORT = 200  # characters of a pushed value that is written out
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
import ast
import asyncio
import atexit
import inspect
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
CELL = '''
_nb_loop = asyncio.new_event_loop()
atexit.register(_nb_loop.close)


def _nb_cell(source):
    """Run a cell that awaits, on one event loop for all of them. Its lines are this file's."""
    above = "\\n" * (sys._getframe(1).f_lineno - 1)
    code = compile(above + source, __file__, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def run():
        waiting = eval(code, globals())
        if inspect.isawaitable(waiting):
            await waiting

    _nb_loop.run_until_complete(run())
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
    """Names that came from the notebook, each as ``describe`` has it."""

    names: dict[str, tuple[str | None, str]]


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


def write(name: str | None, log: Log, *, force: bool = False) -> list[str]:
    """Write the script, and return what is to be said of it, a line each.

    Raises:
      UsageError: there is nothing to write, or a file already is where it would be.
    """
    if name is None:
        raise UsageError("An export needs the name of a script.", EXAMPLE)
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
            lines = ["# %% pushed"]
            for name, (python, told) in step.names.items():
                missing += [told] if python is None else []
                value = f"{name} = {python}  #" if python else f"# {name} = ... : {told},"
                lines.append(f"{value} pushed from the notebook")
            parts.append("\n".join(lines))
        else:
            title = f"# %% [{step.number}] {step.options.strip()}".rstrip()
            parts.append(f"{title}\n{_python(step, world, comments)}".rstrip("\n"))
    text = "\n\n".join(parts)
    futures = list(dict.fromkeys(_FUTURE.findall(text)))
    ranks, devices = world.ranks or "N", world.cpu_devices
    command = f"jaxcluster run{f' -n {ranks}' if world.ranks else ''} "
    command += f"--devices-per-process {devices} {path}" if devices > 1 else path
    config = f'    jax.config.update("jax_num_cpu_devices", {devices})\n'
    pushed = [f"    {told}" for told in missing]
    head = HEAD.format(
        notebook=notebook.replace("\\", "/").replace('"', "'"),
        command=command,
        n=ranks,
        path=path,
        missing="\n".join(["", "Pushed from the notebook. Set below before use:", *pushed, ""])
        if missing
        else "",
        futures="\n".join(["", *futures, ""]),
        devices=config if devices > 1 else "",
        slice=ONE_SLICE if devices and "make_mesh" in text else "",
        display="from IPython.display import display\n" if "display(" in text else "",
    )
    head += SHOW * ("_nb_show(" in text) + CELL * ("_nb_cell(" in text)
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


def describe(name: str, value: object) -> tuple[str | None, str]:
    """A pushed value as Python, if it is short, plain, and no secret by its name; and in words."""
    shape = getattr(value, "shape", None)
    told = f"{name} ({type(value).__name__}"
    told += f" of shape {shape}" if isinstance(shape, tuple) else ""
    text = repr(value) if _is_plain(value) else ""
    names = re.findall(r"\w+", f"{name} {text}")
    is_hidden = {"'", '"'} & {*text} and any(map(is_secret, names))
    if is_hidden or not 0 < len(text) <= SHORT:
        return None, f"{told}{', looks like a secret' if is_hidden else ''})"
    return text, f"{told})"


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether its text is Python, and short. No text is made of what is long, or another type."""
    if type(value) in (list, tuple, set, dict):
        inside = [*value, *value.values()] if type(value) is dict else value
        is_short = len(value) < SHORT / 4 and depth < 4
        return is_short and all(_is_plain(one, depth + 1) for one in inside)
    if type(value) in (str, bytes):
        return len(value) < SHORT
    if type(value) in (float, complex):
        return cmath.isfinite(value)
    return value is None or type(value) is bool or (type(value) is int and abs(value) < 10**SHORT)


def _python(cell: Cell, world: World, comments: list[str]) -> str:
    """A cell as Python; what becomes a comment is added to ``comments``."""
    options = arguments.spmd_parser().read(cell.options)
    body, above = cell.body.lstrip("\n"), ""
    while body.startswith("%%"):
        line, _, rest = body.partition("\n")
        comments.append(line)
        if line[2:].split()[0] not in TIMERS:
            return above + textwrap.indent(body.rstrip("\n"), "# ", lambda line: True)
        above, body = f"{above}# {line}\n", rest.lstrip("\n")
    try:
        lines = TransformerManager().transform_cell(body).splitlines()
        text = "\n".join(_line(line, comments) for line in lines)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(text, "<cell>", "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        some = options.ranks is not None
        text = _shown(text, tree, "print(repr({}), flush=True)" if some else "_nb_show({})")
        code = compile(text, "<cell>", "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        said, at = getattr(error, "msg", error), getattr(error, "lineno", None)
        raise UsageError(
            f"Cell [{cell.number}] is not Python: {said}{f' (line {at})' if at else ''}.",
            "Fix it in the notebook, and run it again.",
        ) from None
    texts = (n for n in ast.walk(tree) if isinstance(n, ast.Constant | ast.JoinedStr))
    cut = some and any(one.lineno != one.end_lineno for one in texts)  # not to be indented
    if cut or code.co_flags & inspect.CO_COROUTINE:
        quoted = text.replace("\\", "\\\\").replace("'''", "\\'\\'\\'")
        text = f"_nb_cell('''\n{quoted}\n''')"
    if some:
        ranks = tuple(parse_ranks(options.ranks, world.ranks or 1 << 20))
        inside = textwrap.indent(text, "    ") if not text.startswith("_nb_cell") else f"    {text}"
        nothing = "" if tree.body else "\n    pass"
        text = f"if jax.process_index() in {ranks}:\n{inside}{nothing}"
    return above + text


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
    name = getattr(call, "id", "") or ast.unparse(call or last.value)
    lines = [line.encode() for line in text.split("\n")]
    first, end = lines[last.lineno - 1], lines[(last.end_lineno or 1) - 1]
    before, after = first[: last.col_offset], end[last.end_col_offset :]
    if name in ("print", "display", "subprocess.run", "os.chdir") or name == "globals().update":
        return text
    if after.lstrip().startswith(b";"):
        return text
    value = ast.get_source_segment(text, last) or ""
    made = show.format(f"({value})" if isinstance(last.value, ast.Tuple) else value)
    head = "\n".join(text.split("\n")[: last.lineno - 1])
    tail = "\n".join(text.split("\n")[last.end_lineno or 1 :])
    middle = f"{before.decode()}{made}{after.decode()}"
    return "\n".join([*([head] if last.lineno > 1 else []), middle, *([tail] if tail else [])])
