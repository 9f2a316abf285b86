"""Every line that help, README and docs tell users to type is typed here.

What needs a running cluster or other hosts goes as far as that: it must then say that there is no
cluster, or come to the place where hosts would be started or logged in to.
"""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from helpers import Home
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell

from jaxcluster import cli, cluster, mcp, scripts, wire
from jaxcluster.cluster import sessions, starting
from jaxcluster.errors import NoCluster, PlanError, UsageError
from jaxcluster.hosts import allocation
from jaxcluster.model import rewrite
from jaxcluster.notebook import export
from jaxcluster.notebook.magics import JaxClusterMagics
from jaxcluster.options.arguments import Help, Parser
from jaxcluster.options.commands import COMMANDS, OTHERS, command_of
from jaxcluster.options.known import known

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# What is built; what is for who reads the code.
NO_PAGES = ("_build", "architecture.md", "internals", "contributing.md")
PAGES = [page for page in PAGES if not set(NO_PAGES) & set(page.parts)]


class Reached(Exception):
    """As far as one comes without hosts."""


class Anything(dict[str, Any]):
    """A notebook that has every name."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> int:
        return 1


# --------------------------------------------------------------------------- where they are typed


@pytest.fixture(autouse=True)
def place(home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with all that examples name, in which nothing is started."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for file in ("hosts", "proj/hosts", "proj/ssh_config", "pod.yaml", "train.py", "mine.ipynb"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("h1 slots=2\n" if file.endswith("hosts") else "")
    for module in ("package/__init__.py", "package/train.py", "project/own.py"):
        (tmp_path / module).parent.mkdir(exist_ok=True)
        (tmp_path / module).write_text("")

    def reached(*args: object, **kwargs: object) -> NoReturn:
        raise Reached

    def started(spec: wire.ClusterSpec, *args: object, **more: object) -> NoReturn:
        if spec.launcher == "local":
            with contextlib.suppress(PlanError):  # this machine has no GPUs
                starting.plan_here(spec)
        else:
            allocation.launcher_for(spec)
        raise Reached

    monkeypatch.setattr(sessions, "start_world", started)
    monkeypatch.setattr(scripts, "start_world", started)
    monkeypatch.setattr(cluster, "dry_run", started)
    monkeypatch.setattr("jaxcluster.views.live.examine", reached)
    monkeypatch.setattr("jaxcluster.hosts.doctor.run_checks", list)
    monkeypatch.setattr(export, "write", reached)
    monkeypatch.setattr(
        mcp, "server", types.SimpleNamespace(serve=lambda allow_run: None), raising=False
    )
    return tmp_path


@pytest.fixture
def typed(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Types a line, or a cell."""
    ours = JaxClusterMagics(shell)
    shell.user_ns = Anything()

    def magic(source: str) -> None:
        if source.endswith("?") and "\n" not in source:
            source = "".join(rewrite.ask_for_help([source]))
        line, _, cell = source.partition("\n")
        name, _, rest = line.lstrip("%").partition(" ")
        if name.endswith("?"):
            assert hasattr(ours, name.removesuffix("?"))
        elif line.startswith("%%spmd"):
            ours.spmd(rest.strip(), cell)
        else:
            getattr(ours, name)(rest.strip())

    def in_shell(line: str) -> None:
        words = shlex.split(line, comments=True)[1:]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cli, "print", no_usage_error, raising=False)
            assert cli.run(words) in (0, 1)

    def type_it(source: str) -> None:
        if "--devices-per-process all" in source:  # said of machines with GPUs alone
            source += " --platform cuda"
        try:
            magic(source) if source.startswith("%") else in_shell(source)
        except (NoCluster, Reached, Help):
            pass

    return type_it


def no_usage_error(said: object = "", *, file: Any = None, **kwargs: Any) -> None:
    if file is not None and not str(said).startswith("NoCluster"):
        raise UsageError(str(said))


# --------------------------------------------------------------------------- help


@pytest.mark.parametrize("name", [*COMMANDS, *OTHERS])
def test_each_option_of_a_command_takes_its_example(name: str) -> None:
    takes = command_of(name).takes
    needed = [one.sample for one in takes if one.is_needed]
    for one in takes:
        line = " ".join([one.typed, *([] if one.is_needed else needed)])
        assert getattr(Parser(name).read(line), one.name)
        assert f"For example: {one.typed}" in Parser(name).format_help() or not one.sample


def test_each_launchers_own_example_is_taken(typed: Callable[[str], None]) -> None:
    for example in known().examples.values():
        typed(example)


# --------------------------------------------------------------------------- pages

FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.M | re.S)
INLINE = re.compile(r"`+([^`\n]+)`+")
OURS = re.compile(r"%{1,2}(?:jaxcluster|spmd|push|pull|shards)\b|jaxcluster(?= [a-z-])")
STANDS_FOR = {
    "--launcher NAME": "--launcher local",
    "--out NAME": "--out kept",
    "NAME": "team",
    "HOST": "h1",
    "RANKS": "0,2-3",
    "RANK": "2",
    "COUNT": "30",
    "CELL": "7",
    "SIZE": "2GB",
    "EXPRESSION": "x",
    "EXPR": "x",
    "FILE": "hosts",
    "COMMAND": "start",
    "{gpu}": "--launcher slurm --nodes 2",  # a variable of the page's
}


def spelled_out(line: str) -> list[str]:
    """``stop [NAME]`` and ``auto on|off`` are several lines; a word for a value is one."""
    line = line.replace("\\|", "|")
    if found := re.search(r"\S+\|\S+", line):
        return [
            one
            for word in found.group().split("|")
            for one in spelled_out(line[: found.start()] + word + line[found.end() :])
        ]
    line = re.sub(r" \[--[a-z]+ \.\.\.\]", "", line)
    line = line.replace(" ...", "").replace("...", "").replace("(or: -m MODULE ARGS)", "")
    if found := re.search(r"\s*\[([^'\[\]]*[A-Za-z][^'\[\]]*)\](?=\s|$)", line):
        with_it = f"{line[: found.start()]} {found[1]}{line[found.end() :]}"
        return [*spelled_out(line[: found.start()] + line[found.end() :]), *spelled_out(with_it)]
    for word, value in STANDS_FOR.items():
        line = re.sub(rf"(?<!\S){word}(?=\s|$)", value, line)
    line = re.sub(r"(?<=\s)-n N(?=\s|$)", "-n 4", line)
    line = re.sub(r"(?<=--devices-per-process )D(?=\s|$)", "2", line)
    return [re.sub(r"(?<=--timeout )S(?=\s|$)", "60", line).replace(" ARGS", "").strip()]


def lines_of(page: Path) -> Iterator[str]:
    """What a page shows as typed: lines, and whole ``%%spmd`` cells."""
    text = page.read_text()
    for language, block in FENCED.findall(text):
        cell: list[str] = []
        for line in block.splitlines():
            if line.startswith("%%spmd"):
                cell = [line]
            elif cell:
                cell.append(line)
            elif OURS.match(line):
                # Remarks stand beside lines in columns.
                yield re.split(r"\s{3,}(?=[^-\s])", line)[0]
        if cell:
            yield "\n".join(cell if language == "python" else without_outputs(cell))
    for line in INLINE.findall(FENCED.sub("", text)):
        if OURS.match(line) and not is_name(line):
            yield from spelled_out(line)


def is_name(line: str) -> bool:
    """Whether a text speaks of a command, rather than shows how it is typed."""
    first, _, command = line.partition(" ")
    if first == "%jaxcluster":
        return command in ("", *COMMANDS)
    return line.lstrip("%") in (
        "push",
        "pull",
        "shards",
        "spmd",
        *(f"jaxcluster {c}" for c in cli.COMMANDS),
    )


def without_outputs(cell: list[str]) -> list[str]:
    """The lines that are Python."""
    for end in range(len(cell), 1, -1):
        with contextlib.suppress(SyntaxError):
            ast.parse(TransformerManager().transform_cell("\n".join(cell[1:end])))
            return cell[:end]
    return cell


def test_the_pages_are_found() -> None:
    assert len(PAGES) > 12
    assert sum(len(list(lines_of(page))) for page in PAGES) > 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_line_of_a_page_is_taken(
    page: Path, typed: Callable[[str], None], shell: InteractiveShell
) -> None:
    for source in lines_of(page):
        try:
            typed(source)
            if source.startswith("%%spmd"):
                python = shell.transform_cell(source.partition("\n")[2])
                compile(python, "", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except UsageError as error:
            told = str(error).splitlines()[0]  # where the page shows that, too
            if source == "%jaxcluster panel":  # the shell here is a terminal's
                continue
            assert told in page.read_text(), f"{source}\n{error}"
