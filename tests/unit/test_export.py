"""``%jaxcluster export``: what becomes of cells, of what IPython alone understands, of pushes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from jaxcluster.errors import UsageError
from jaxcluster.notebook import export
from jaxcluster.notebook.export import Cell, Log

HEAD = "    try:\n        jax.distributed.initialize()\n"


def exported(*steps: Cell, ranks: int = 4, devices: int = 2) -> str:
    return export.script(Log([*steps], ranks, devices), "nb.ipynb", "train.py")[0]


def cell(body: str, options: str = "") -> str:
    """What becomes of one cell."""
    text = exported(Cell(3, options, body))
    return text[text.index("# %% [3]") :].partition("\n")[2].rstrip("\n")


def notes(*steps: Cell) -> str:
    return "\n".join(export.script(Log([*steps], 4, 2), "nb.ipynb", "train.py")[1])


def test_the_head_says_how_to_run_it_and_initializes() -> None:
    text = exported(Cell(1, "", "print(1)"))
    assert "jaxcluster run -n 4 --devices-per-process 2 train.py" in text
    assert "srun -n 4 python train.py" in text
    assert "mpiexec -n 4 python train.py" in text
    assert "if not jax.distributed.is_initialized():" in text
    assert 'jax.config.update("jax_num_cpu_devices", 2)\n' + HEAD in text
    assert "slice_index" not in text
    mesh = Cell(1, "", "mesh = jax.make_mesh((8,), 'i')")
    assert "slice_index" in exported(mesh)  # of CPU devices on several hosts
    assert "slice_index" not in exported(mesh, devices=0)
    assert "jax_num_cpu_devices" not in exported(Cell(1, "", "print(1)"), devices=1)


@pytest.mark.parametrize("error", [ValueError, RuntimeError, KeyError])
def test_a_script_that_nobody_has_told_its_number_says_how_it_is_started(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under MPICH and Open MPI 5: the one raises a ValueError, the other a RuntimeError."""

    def initialize() -> None:
        raise error("coordinator_address should be defined.")

    distributed = types.SimpleNamespace(is_initialized=lambda: False, initialize=initialize)
    jax = types.SimpleNamespace(distributed=distributed, config=None)
    monkeypatch.setitem(sys.modules, "jax", jax)
    script = exported(Cell(1, "", "print(1)"), ranks=2, devices=0)
    with pytest.raises(KeyError if error is KeyError else SystemExit) as ended:
        exec(script, {})
    if error is not KeyError:
        assert str(ended.value) == (
            "jax.distributed.initialize() failed: coordinator_address should be defined.\n"
            "This script is started by: jaxcluster run SCRIPT   or, by any MPI: "
            "jaxcluster run --launcher mpi SCRIPT"
        )


def test_the_head_is_python_whatever_the_notebook_is_called() -> None:
    for name in ('a"""b.ipynb', "C:\\x\\nb.ipynb"):
        text, _ = export.script(Log([Cell(1, "", "x = 1")]), name, "train.py")
        docstring = ast.get_docstring(ast.parse(text)) or ""
        assert "b.ipynb" in docstring


@pytest.mark.parametrize(
    ("body", "made"),
    [
        ("x = 1\nx", "x = 1\n_nb_show(x)"),
        ("print(x)", "print(x)"),
        ("'é'; f(a,\n  b)  # why", "'é'; _nb_show(f(a, b))"),
        ("if x:\n    x", "if x:\n    x"),
        ("%time y = f(x)\ny", "get_ipython().run_line_magic('time', 'y = f(x)')\n_nb_show(y)"),
        ("%time f(x)", "_nb_show(get_ipython().run_line_magic('time', 'f(x)'))"),
        ("!ls {folder}", "get_ipython().system('ls {folder}')"),
        ("!pip install x", "pass  # get_ipython().system('pip install x')"),
        ("x?", "pass  # get_ipython().run_line_magic('pinfo', 'x')"),
        (
            "if x:\n    %pip install y\ny = 1",
            "if x:\n    pass  # get_ipython().run_line_magic('pip', 'install y')\ny = 1",
        ),
        ("s = '''\n%cd x\n!ls\n'''", "s = '''\n%cd x\n!ls\n'''"),
        ("a, b", "_nb_show((a, b))"),
        ("*a, 1", "_nb_show((*a, 1))"),
        ("", ""),
        ("# nothing", "# nothing"),
    ],
)
def test_a_cell_becomes_python(body: str, made: str) -> None:
    assert cell(body) == made


def test_cells_of_some_ranks_are_theirs() -> None:
    assert cell("x = 1\nx", "--ranks 1") == (
        "if jax.process_index() in (1,):\n    x = 1\n    print(repr(x), flush=True)"
    )
    assert cell("x?", "--ranks 0,2-3 --timeout 60") == (
        "if jax.process_index() in (0, 2, 3):\n    pass"
    )
    text = "x = '''a\n b'''"  # its second line can't be indented
    assert cell(text, "--ranks 1").endswith("    x = 'a\\n b'")
    assert "# %% [3] --timeout 60\n" in exported(Cell(3, "--timeout 60", "x = 1"))


def test_a_cell_with_functions_that_await_is_as_it_was() -> None:
    assert cell("async def f():\n    await g()") == "async def f():\n    await g()"
    awaits = Cell(3, "", "x = 1\n\nawait f()")
    assert exported(awaits).endswith("# %% [3]\n# x = 1\n# \n# await f()\n")
    assert "Left out: cell [3], which is Python only in a notebook." in notes(awaits)
    told = notes(Cell(1, "", "!pip install x"))
    assert "Left out: get_ipython().system('pip install x')." in told


def test_magics_of_a_script_do_what_they_do_in_a_notebook(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0")
    cells = ["folder = '/'", "!ls -d {folder}", "%%time\nx = 1\nx", "%env A=b", "%cd /"]
    cells += ["import os\nos.environ['A']", "%run ~/bad.py", "print('after an error')"]
    text = exported(*(Cell(1, "", one) for one in cells))
    head, tail = text.index("if not jax"), text.index("import sys")
    (tmp_path / "train.py").write_text(text[:head] + text[tail:])
    argv, env = [sys.executable, tmp_path / "train.py"], {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    told = [line for line in done.stdout.splitlines() if "time" not in line]
    assert told == ["/", "1", "env: A=b", "/", "'b'"], done.stderr
    assert (done.returncode, done.stderr[-17:]) == (1, "division by zero\n")


def test_futures_come_first() -> None:
    text = exported(Cell(1, "", "x = 1"), Cell(2, "", "from __future__ import annotations\ny = 2"))
    compile(text, "train.py", "exec")
    assert text.index("from __future__ import annotations") < text.index("import jax")


def test_what_was_pushed_is_named() -> None:
    log = Log([Cell(1, "", "print(data)")], 4, 2, ["token", "data", "token"])
    text, told = export.script(log, "nb.ipynb", "train.py")
    assert "here.\n# token = ...\n# data = ...\n" in text
    assert "Set the values that you pushed at its top: token, data." in told


# --------------------------------------------------------------------------- the command


@pytest.fixture
def log() -> export.Log:
    return Log([Cell(1, "", "x = 1"), Cell(2, "", "x = 2")], 2)


def test_only_what_has_ended_well_is_written(log: export.Log, tmp_path: Path) -> None:
    log.cells += [Cell(3, "", "x = 3", ok=False), Cell(4, "", "x = 4")]
    said = export.write(f"{tmp_path}/train.py", log)
    assert said[0].endswith("3 of 4 cells of this notebook: those that ended well.")
    text = (tmp_path / "train.py").read_text()
    assert [n for n in range(9) if f"x = {n}\n" in text] == [1, 2, 4]


def test_what_the_ranks_no_longer_have_is_no_part_of_the_script() -> None:
    class Running:
        spec = types.SimpleNamespace(platform="cpu")
        record = types.SimpleNamespace(devices=())
        num_processes = 2

    running: Any = Running()
    logs = export.Logs()
    logs.of(running).cells.append(Cell(1, "", "x = 1"))
    assert logs.last.ranks == 2 and len(logs.last.cells) == 1
    logs.forget(running)
    assert logs.last.cells == [] == logs.of(running).cells


def test_nothing_is_written_over(log: export.Log, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("mine")
    with pytest.raises(UsageError, match=r"not changed\.\n.* --force"):
        export.write(str(path), log)
    assert path.read_text() == "mine"
    assert f"jaxcluster run -n 2 {path}" in str(export.write(str(path), log, force=True))
    assert "x = 2" in path.read_text()


def test_what_can_not_be_written_is_told(
    log: export.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="can't be written: No such file"):
        export.write("nowhere/train.py", log)
    with pytest.raises(UsageError, match=r"No %%spmd cell of .* has succeeded on these ranks"):
        export.write("empty.py", export.Log())
