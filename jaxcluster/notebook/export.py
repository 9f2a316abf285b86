"""``%jaxcluster export``: the cells of the ranks as a script. Pure: text in, text out.

What IPython alone understands becomes Python, or a comment with the line as it was typed. The
script runs by itself under ``srun`` and ``mpiexec`` and on TPU hosts, and under ``jaxcluster run``.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import shlex
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

from jaxcluster import arguments
from jaxcluster.errors import UsageError
from jaxcluster.notebook import export_prelude
from jaxcluster.ranks import parse_ranks
from jaxcluster.text import is_secret

SHORT = 200  # characters of a pushed value that is written out
TIMED = ("time",)  # magics that run what they are given, and say more of it
BODIES = ("time", "capture", "prun")  # the same of cells
SHELLS = ("system", "getoutput", "getoutput_detailed")
# What needs the event loop that runs while a notebook's cell does, without an await.
LOOPS = {"create_task", "ensure_future", "gather", "get_running_loop", "current_task"}
NO_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True)
class Cell:
    """A cell that the ranks have run, or would.

    Attributes:
      number: its own in the notebook; 0: it has none.
      options: what stands behind ``%%spmd``.
      body: what stands below it.
    """

    number: int
    options: str
    body: str


@dataclass(frozen=True)
class Push:
    """Names that came from the notebook: to each its value, as Python, or what it is in words."""

    values: dict[str, str | None]
    told: dict[str, str]


@dataclass(frozen=True)
class World:
    """The cluster that the notebook had.

    Attributes:
      ranks: how many; 0: not known.
      cpu_devices: of each rank; 0 on other platforms.
    """

    ranks: int = 0
    cpu_devices: int = 0


def _is_short(value: object) -> bool:
    """Whether it is made of Python's own plain types, and may be short as text.

    Of what is long, or somebody's own, no text is made: that costs what its size is, or raises.
    """
    length, left = 0, [value]
    while left and length <= SHORT:
        one: Any = left.pop()
        if type(one) in (str, bytes):
            length += len(one)
        elif type(one) is int:
            length += one.bit_length() // 4
        elif type(one) in (list, tuple, set, dict):
            length += len(one)
            if length <= SHORT:
                left += [*one, *one.values()] if type(one) is dict else one
        elif one is None or type(one) in (bool, float, complex):
            length += 1
        else:
            return False
    return length <= SHORT


def describe(name: str, value: object) -> tuple[str | None, str]:
    """A pushed value as Python, where it is short, plain and no secret by its name; in words."""
    kind = type(value).__name__
    shape = getattr(value, "shape", None)
    of_shape = f" of shape {shape}" if isinstance(shape, tuple) else ""
    text = repr(value) if _is_short(value) else ""
    try:
        is_plain = 0 < len(text) <= SHORT and ast.literal_eval(text) == value
    except ValueError:  # nan, inf
        is_plain = False
    hidden = is_plain and _has_secret(name, text)
    told = f"{name} ({kind}{of_shape}{', looks like a secret' if hidden else ''})"
    return (text if is_plain and not hidden else None), told


def _has_secret(name: str, literal: str) -> bool:
    """Whether a text in it stands under a name, its own or a dictionary's key, of a secret."""
    nodes = list(ast.walk(ast.parse(literal, mode="eval")))
    keys = [key for node in nodes if isinstance(node, ast.Dict) for key in node.keys]
    names = [name, *(str(key.value) for key in keys if isinstance(key, ast.Constant))]
    values = [node for node in nodes if isinstance(node, ast.Constant) and node not in keys]
    is_text = any(isinstance(node.value, str | bytes) for node in values)
    return is_text and any(map(is_secret, names))


def script(
    steps: Sequence[Cell | Push], world: World, notebook: str, order: str, path: str
) -> tuple[str, list[str]]:
    """The script, and what is to be said of it: a line each.

    Raises:
      UsageError: a cell is not Python.
    """
    cells = [step for step in steps if isinstance(step, Cell)]
    made = [_Made(step, world) if isinstance(step, Cell) else step for step in steps]
    parts: list[str] = []
    futures: list[str] = []
    needs: set[str] = set()
    missing: dict[str, str] = {}
    for one in made:
        if isinstance(one, Push):
            parts.append(_pushed(one, missing))
            continue
        futures += [line for line in one.futures if line not in futures]
        needs |= one.needs
        title = f"# %% [{one.cell.number}]" if one.cell.number else "# %%"
        options = f" {one.cell.options.strip()}" if one.cell.options.strip() else ""
        parts.append(f"{title}{options}\n{one.text.strip(chr(10))}")
    imports = [export_prelude.IMPORTS[name] for name in export_prelude.IMPORTS if name in needs]
    made_up = [
        _head(world, notebook, order, path, missing),
        *(["\n".join(futures)] if futures else []),
        "\n".join([*imports, "import jax"]),
        export_prelude.START.format(devices=_devices(world)).strip("\n"),
    ]
    if world.cpu_devices and any("make_mesh" in part for part in parts):
        made_up[-1] += export_prelude.ONE_SLICE.rstrip("\n")
    helpers = [
        export_prelude.HELPERS[name].strip("\n") for name in export_prelude.HELPERS if name in needs
    ]
    text = "\n\n\n".join(["\n\n".join(made_up), *helpers, "\n\n".join(parts)]) + "\n"
    try:
        compile(text, path, "exec", dont_inherit=True)
    except NO_PYTHON as error:
        raise UsageError(
            f"These cells, one after the other, are not valid Python: {error}.",
            "Fix them in the notebook: together they must be one valid script.",
        ) from None
    notes = [f"{path}: {len(cells)} cell{'' if len(cells) == 1 else 's'} of {notebook}, {order}."]
    if missing:
        told = ", ".join(missing.values())
        notes.append(f"Set there what was pushed from the notebook: {told}.")
    left = sorted({line for one in made if isinstance(one, _Made) for line in one.left_out})
    if left:
        notes.append(f"Left as comments: {'; '.join(left)}.")
    notes.append(f"Run it: {_command(world, path)}")
    return text, notes


# --------------------------------------------------------------------------- the script's head


def _devices(world: World) -> str:
    if world.cpu_devices < 2:
        return ""
    return f'    jax.config.update("jax_num_cpu_devices", {world.cpu_devices})\n'


def _command(world: World, path: str) -> str:
    ranks = f" -n {world.ranks}" if world.ranks else ""
    devices = f" --devices-per-process {world.cpu_devices}" if world.cpu_devices > 1 else ""
    return f"jaxcluster run{ranks}{devices} {path}"


def _head(world: World, notebook: str, order: str, path: str, missing: dict[str, str]) -> str:
    n = world.ranks or "N"
    ways = {
        _command(world, path): "by itself, or with --launcher ssh, slurm, mpi",
        f"srun -n {n} python {path}": "in a Slurm allocation",
        f"mpiexec -n {n} python {path}": "Open MPI 4, on rank 0's host; otherwise --launcher mpi",
        f"python {path}": "on every host of a TPU slice",
    }
    width = max(map(len, ways))
    lines = [
        f"The %%spmd cells of {notebook}, {order}: made by %jaxcluster export.",
        "",
        *(f"    {way:<{width}}  # {where}" for way, where in ways.items()),
    ]
    if missing:
        lines += ["", "Pushed from the notebook. Set below before use:"]
        lines += [f"    {told}" for told in missing.values()]
    body = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{body}\n"""'


def _pushed(push: Push, missing: dict[str, str]) -> str:
    lines = []
    for name, value in push.values.items():
        if value is not None:
            lines.append(f"{name} = {value}  # pushed from the notebook")
        else:
            missing[name] = push.told[name]
            lines.append(f"# {name} = ...  pushed from the notebook: {push.told[name]}")
    return "\n".join(["# %% pushed", *lines])


# --------------------------------------------------------------------------- one cell


class _Made:
    """A cell as Python.

    Attributes:
      text: that of the script.
      futures: its imports from ``__future__``, which must come first.
      needs: the helpers that it uses.
      left_out: what of it became a comment, as it was typed.
    """

    def __init__(self, cell: Cell, world: World) -> None:
        self.cell = cell
        self.futures: list[str] = []
        self.needs: set[str] = set()
        self.left_out: list[str] = []
        self.text = self._make(cell, world)

    def _make(self, cell: Cell, world: World) -> str:
        options = arguments.spmd_parser().read(cell.options)
        body = cell.body
        while (first := body.lstrip("\n").partition("\n"))[0].startswith("%%"):
            name = first[0].split()[0].removeprefix("%%")
            if name not in BODIES:
                return self._comment(body.strip("\n"), first[0])
            self.left_out.append(first[0])
            body = f"# {first[0]}\n{first[2]}"
            if body.partition("\n")[2].lstrip("\n").startswith("%%"):
                return self._comment(body, first[0])
        try:
            python = TransformerManager().transform_cell(body)
            tree = _parsed(python)
        except NO_PYTHON as error:
            raise self._refused(error) from None
        some = options.ranks is not None
        edits = [*self._magics(tree, python, some), *self._unscripted(tree, python)]
        edits += self._shown(tree, python, plain=some)
        text = _edited(python, edits).strip("\n")
        self._names(tree)
        try:
            if _awaits(text) or _wants_loop(tree):
                text = self._awaited(text)
            if some:
                ranks = _ranks(options.ranks, world)
                text = f"if jax.process_index() in {ranks}:\n{_indented(text)}"
            compile(text, "<cell>", "exec", dont_inherit=True)
        except NO_PYTHON as error:
            raise self._refused(error) from None
        return text

    def _refused(self, error: BaseException) -> UsageError:
        said = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
        return UsageError(
            f"Cell [{self.cell.number}] is not Python: {said}{line}.",
            "Fix it in the notebook, or leave it out: %jaxcluster export takes cells that have "
            "run.",
        )

    def _comment(self, text: str, line: str) -> str:
        self.left_out.append(line)
        return textwrap.indent(text, "# ", lambda line: True)

    def _names(self, tree: ast.Module) -> None:
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        if "display" in names:
            self.needs.add("display")

    def _unscripted(self, tree: ast.Module, source: str) -> Iterable[tuple[ast.stmt, str]]:
        """What stands elsewhere in a script, or nowhere.

        At the top of a module ``global x`` says nothing, and is refused below another cell's x.
        """
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                self.futures.append(ast.unparse(node))
                yield node, f"# {self.futures[-1]}"
        for inner in _outside_functions(tree):
            if isinstance(inner, ast.Global):
                yield inner, f"pass  # {ast.unparse(inner)}"

    def _shown(self, tree: ast.Module, source: str, plain: bool) -> Iterable[tuple[ast.stmt, str]]:
        """The last expression, as what prints it."""
        last = tree.body[-1] if tree.body else None
        if not isinstance(last, ast.Expr) or _magic(last.value) is not None:
            return
        call = last.value
        is_print = isinstance(call, ast.Call) and getattr(call.func, "id", "") in (
            "print",
            "display",
        )
        text = ast.get_source_segment(source, last) or ""
        lines = source.splitlines(keepends=True)[(last.end_lineno or 1) - 1 :]
        after = "".join(lines).encode()[last.end_col_offset or 0 :].decode()
        if is_print or after.lstrip(" \t").startswith(";"):
            return
        if isinstance(call, ast.Constant) and isinstance(call.value, str) and "\n" in call.value:
            return  # text of its own
        yield last, self._show(text, plain)

    def _show(self, text: str, plain: bool) -> str:
        call, value = (_parsed(one).body[0].value for one in (f"f({text}\n)", text))  # type: ignore[attr-defined]
        if [ast.dump(arg) for arg in call.args] != [ast.dump(value)]:
            text = f"({text})"  # a bare tuple
        if plain:
            return f"print(repr({text}), flush=True)"
        self.needs.add("show")
        return f"_nb_show({text})"

    # ------------------------------------------------------------------ magics

    def _magics(self, tree: ast.Module, source: str, plain: bool) -> Iterable[tuple[ast.stmt, str]]:
        for node in ast.walk(tree):
            if not isinstance(node, ast.Expr | ast.Assign):
                continue
            found = _magic(node.value)
            if found is None:
                continue
            kind, words = found
            target = ""
            if isinstance(node, ast.Assign):
                target = f"{ast.unparse(node.targets[0])} = "
            made = self._python(kind, words, target, is_top=node.col_offset == 0)
            is_timed = kind == "run_line_magic" and words[0] in TIMED
            if node is tree.body[-1] and is_timed and not target and _is_expression(made):
                made = self._show(_without_comment(made), plain)
            yield node, made

    def _python(self, kind: str, words: list[str], target: str, is_top: bool) -> str:
        """A magic as Python; where there is none, as a comment."""
        if kind in SHELLS:
            typed = f"{'!!' if kind == 'getoutput' and not target else '!'}{words[0]}"
            made = self._shell(words[0], bool(target))
        elif kind == "run_line_magic":
            name, rest = words[0], words[1] if len(words) > 1 else ""
            typed = f"%{name} {rest}".rstrip()
            made = self._line(name, rest, bool(target))
        else:
            typed = f"%%{words[0]}"
            made = None
        if made is not None:
            return f"{target}{made}"
        self.left_out.append(typed)
        if target:
            return f"{target}None  # {typed}"
        return f"# {typed}" if is_top else f"pass  # {typed}"

    def _shell(self, command: str, is_kept: bool) -> str | None:
        if re.search(r"(?<!\{)\{|\$", command) or re.match(r"\s*(pip|conda|mamba|uv)\b", command):
            return None
        self.needs.add(name := "lines" if is_kept else "shell")
        return f"_nb_{name}({command!r})"

    def _line(self, name: str, rest: str, is_kept: bool) -> str | None:
        if name in TIMED and rest and not rest.startswith("-"):
            if (made := self._timed(rest, is_kept)) is not None:
                self.left_out.append("%time")
            return made
        if "{" in rest or "$" in rest:
            return None
        if name == "run":
            try:
                argv = shlex.split(rest)
            except ValueError:
                return None
            if not argv or argv[0].startswith("-") or not argv[0].endswith(".py"):
                return None
            self.needs.add("run")
            return f"_nb_run({', '.join(map(repr, argv))})"
        if name == "cd" and rest and not rest.startswith("-"):
            self.needs.add("cd")
            return f"_nb_cd({rest.strip()!r})"
        if name in ("env", "set_env"):
            variable, equals, value = rest.partition("=") if "=" in rest else rest.partition(" ")
            if equals and variable.strip():
                self.needs.add("env")
                return f"_nb_env({variable.strip()!r}, {value.strip()!r})"
        return None

    def _timed(self, rest: str, is_kept: bool) -> str | None:
        """What stands behind %time: Python, or another magic; None where it is neither."""
        try:
            source = TransformerManager().transform_cell(rest).strip("\n")
            tree = _parsed(source)
        except NO_PYTHON:
            return None
        only = tree.body[0] if len(tree.body) == 1 else None
        if isinstance(only, ast.Expr | ast.Assign) and (found := _magic(only.value)) is not None:
            kind, words = found
            if isinstance(only, ast.Assign) or kind not in (*SHELLS, "run_line_magic"):
                return None
            if kind in SHELLS:
                return self._shell(words[0], is_kept)
            return self._line(words[0], words[1] if len(words) > 1 else "", is_kept)
        if "get_ipython" in source or (is_kept and not _is_expression(source)):
            return None
        return source

    # ------------------------------------------------------------------ await

    def _awaited(self, text: str) -> str:
        """A cell that awaits, as text: a function would have other names than the script."""
        self.needs.add("await")
        if "'''" in text:
            escaped = text.replace("\\", "\\\\").replace("'''", "\\'\\'\\'")
            return f"_nb_await('''\n{escaped}\n''')"
        return f"_nb_await({'r' if chr(92) in text else ''}'''\n{text}\n''')"


def _parsed(source: str) -> ast.Module:
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(source, "<cell>", "exec", flags, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    return tree


def _without_comment(expression: str) -> str:
    return ast.get_source_segment(expression, _parsed(expression).body[0]) or expression


def _awaits(source: str) -> bool:
    """Whether it awaits outside of functions, as Python and so IPython see it."""
    code = compile(source, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return bool(code.co_flags & inspect.CO_COROUTINE)


def _is_expression(source: str) -> bool:
    """Whether it is one, which a notebook would show."""
    try:
        tree = _parsed(source)
    except NO_PYTHON:
        return False
    is_one = len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr)
    return is_one and not source.rstrip().endswith(";") and not source.startswith("_nb_")


def _magic(value: ast.expr | None) -> tuple[str, list[str]] | None:
    """(which call of IPython's, its words), where an expression is what it makes of a magic."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        return None
    shell = value.func.value
    is_shell = isinstance(shell, ast.Call) and getattr(shell.func, "id", "") == "get_ipython"
    words = [one.value for one in value.args if isinstance(one, ast.Constant)]
    if not is_shell or not words or value.func.attr not in (*SHELLS, "run_line_magic"):
        return None
    return value.func.attr, [str(word) for word in words]


def _ranks(word: str, world: World) -> str:
    try:
        most = world.ranks or 1 + max(map(int, re.findall(r"\d+", word)))
        ranks = parse_ranks(word, most)
    except ValueError as error:
        raise UsageError(f"{error}.", "%jaxcluster export takes cells that could run.") from None
    return f"({', '.join(map(str, ranks))}{',' if len(ranks) == 1 else ''})"


def _place(edit: tuple[ast.stmt, str]) -> tuple[int, int]:
    return edit[0].lineno, edit[0].col_offset


def _edited(source: str, edits: Iterable[tuple[ast.stmt, str]]) -> str:
    """The source with these statements replaced. ``ast`` counts columns in bytes."""
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    data = source.encode()
    for node, text in sorted(edits, key=_place, reverse=True):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        rest = data[end:]
        if text.lstrip().startswith(("#", "pass  #")) or "  # %" in text:
            rest = re.sub(rb"\A[ \t]*;[ \t]*", b"\n", rest)
        data = data[:begin] + text.encode() + rest
    return data.decode()


def _indented(text: str) -> str:
    """The text by four spaces further in; the inside of strings of several lines stays as it is."""
    inside: set[int] = set()
    strings = [tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)]
    depth_start = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in strings:
            inside |= set(range(token.start[0] + 1, token.end[0] + 1))
        elif tokenize.tok_name[token.type] == "FSTRING_START":
            depth_start = token.start[0]
        elif tokenize.tok_name[token.type] == "FSTRING_END":
            inside |= set(range(depth_start + 1, token.end[0] + 1))
    lines = text.split("\n")
    shown = [
        line if number in inside or not line.strip() else f"    {line}"
        for number, line in enumerate(lines, 1)
    ]
    has_code = any(line.strip() and not line.strip().startswith("#") for line in lines)
    return "\n".join(shown if has_code else [*shown, "    pass"])


def _outside_functions(tree: ast.Module) -> Iterator[ast.AST]:
    """What of it runs with the cell itself, in its namespace."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def _wants_loop(tree: ast.Module) -> bool:
    """Whether it makes tasks or futures, and no loop of its own."""
    called = [node.func for node in _outside_functions(tree) if isinstance(node, ast.Call)]
    names = {getattr(func, "attr", getattr(func, "id", "")) for func in called}
    has_own = {"run", "run_until_complete"} & names
    return bool(LOOPS & names) and not has_own
