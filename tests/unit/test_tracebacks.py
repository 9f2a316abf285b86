"""Whose code a frame is, and where a launch is made. This process imports no JAX (law 1)."""

from __future__ import annotations

import importlib.util
import json
import linecache
import sys
from pathlib import Path

from helpers import python

from jaxcluster.agreement.messages import Place
from jaxcluster.rank import places, questions

SCRIPT = """
import json, os, sys, traceback
import jax, jax.numpy as jnp
from jaxcluster.rank import tracebacks
said = {}
jax.config.update("jax_traceback_filtering", "tracebackhide")
file = "/tmp/ipykernel_jaxcluster/1-0123456789ab.py"
cell = compile("def f(x):\\n    return x.foo\\njax.jit(f)(1.0)", file, "exec")
try:
    exec(cell, {"jax": jax})
except Exception as caught:
    error = caught
frames = lambda lines: [l for l in "\\n".join(lines).splitlines() if "File" in l or " cell [" in l]
said["odd"] = frames(tracebacks.plain_lines(error))
group = ExceptionGroup("g", [error])
said["group"] = frames(tracebacks.plain_lines(group))
jax.config.update("jax_traceback_filtering", "off")
said["off"] = len(frames(tracebacks.plain_lines(error)))
print(json.dumps(said))
"""


def test_each_file_has_an_owner() -> None:
    jax, numpy, pdb = (importlib.util.find_spec(name).origin for name in ("jax", "numpy", "pdb"))  # type: ignore[union-attr]
    for folded in (jax, pdb, questions.__file__):
        assert places.owner(str(folded)) == "folded"
    assert places.owner(str(numpy)) == "library"
    assert places.owner(str(Path(str(jax)).parent.parent / "jaxopt" / "x.py")) == "library"
    assert places.owner("/home/me/.local/lib/python3.11/site-packages/optax/a.py") == "library"
    assert places.owner("/usr/lib/python3/dist-packages/yaml/__init__.py") == "library"
    assert places.owner("<string>") == "made"
    assert places.owner(str(json.__file__)) == "python"
    assert places.owner("/home/me/project/train.py") == "user"


def test_errors_that_ipython_can_not_show_have_the_users_lines_alone() -> None:
    done = python("-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    for lines in (said["odd"], said["group"]):
        assert sum("cell [1]" in line for line in lines) == 2
        assert not any("/jax/" in line for line in lines)
    assert said["off"] > len(said["odd"])


FRAME = "import sys\nframe = sys._getframe()"


def place(code: str, line: int = 2) -> Place:
    """That of a line of a cell, which has this text."""
    name = f"/tmp/ipykernel_1/cell-{hash(code)}.py"
    linecache.cache[name] = len(code), None, f"\n{code}\n".splitlines(True), name
    names: dict[str, object] = {}
    exec(compile("\n" * (line - 2) + FRAME, name, "exec"), names)
    frame = names["frame"]
    assert isinstance(frame, type(sys._getframe()))
    return places.place_of(frame, {name: 4}.get)


def test_a_line_is_shown_as_it_was_typed() -> None:
    assert place("total = x.sum()") == Place(4, 2, "total = x.sum()", "")
    assert place("y = " + "a" * 90) == Place(4, 2, "y = " + "a" * 76, "")
    assert place(r"get_ipython().run_line_magic('run', 'it\'s.py -n')").text == "%run it's.py -n"
