"""Law 1: the notebook's process never imports jax, which would seize its GPU or TPU.

Proved in processes of their own, since another test may have imported it here. The import-linter
contracts in pyproject.toml say the same of the source; these see what really happens.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers import Home, python

import jaxcluster

REPORT = """
import sys
found = sorted({name.partition(".")[0] for name in sys.modules} & {"jax", "jaxlib", "libtpu"})
print("imported:", *found)
"""

SHELL = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("%load_ext jaxcluster").raise_error()
"""

CLUSTER = """
import tempfile
import numpy as np
import jaxcluster
with jaxcluster.start(2, devices_per_process=2) as cluster:
    cluster.run('''
import jax, jax.numpy as jnp, numpy as np
from typing import NamedTuple
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4,), ("i",))
x = jax.device_put(np.arange(8.0), NamedSharding(mesh, P("i")))
small = jnp.ones(3, jnp.bfloat16)
key = jax.random.key(0)
tree = {"x": x, "spec": P("i")}
''')
    assert cluster["x"].sum() == 28
    assert cluster["small"].dtype.name == "bfloat16"
    cluster["key"]
    try:
        cluster["tree"]
    except jaxcluster.JaxClusterError:
        pass
    cluster.push({"a": np.ones(100_000)})
    cluster.run("a.sum()")
    cluster.status()
    with tempfile.TemporaryDirectory() as folder:
        cluster.run("x.sum()", profile=folder)
"""


def imported_by(home: Home, source: str) -> list[str]:
    """Which of JAX's packages a process has imported after ``source``."""
    done = python("-c", source + REPORT, env=home.environ())
    assert done.returncode == 0, done.stderr
    home.wait_until_empty()
    last = done.stdout.splitlines()[-1]
    assert last.startswith("imported:")
    return last.split()[1:]


WITHOUT_RANKS = """
from jaxcluster import *
start, attach, current, Cluster
import jaxcluster.cli, jaxcluster.cluster.transfer
from jaxcluster import cluster
from jaxcluster.hosts import doctor
doctor.run_checks()
cluster.dry_run(cluster.make_spec(4))
"""


@pytest.mark.parametrize("source", [WITHOUT_RANKS + SHELL, CLUSTER], ids=["no ranks", "a cluster"])
def test_nothing_that_a_notebook_does_imports_jax(home: Home, source: str) -> None:
    assert imported_by(home, source) == []


def test_an_import_in_a_cell_is_found(home: Home) -> None:
    """So that the test above can fail."""
    source = SHELL + "shell.run_cell('import jaxlib').raise_error()"
    assert imported_by(home, source) == ["jaxlib"]


AGREE = """
import time
before = time.process_time()
import jaxcluster
plain = time.process_time() - before
assert not any(name.startswith("jaxcluster.") for name in sys.modules)
import jax, jax.experimental.compilation_cache.compilation_cache
before = time.process_time()
jaxcluster.agree
print(plain, time.process_time() - before)
found = {name.partition(".")[0] for name in sys.modules} & {
    "IPython", "ipyparallel", "jupyter_client", "msgspec", "tornado", "traitlets", "zmq"
}
assert not found, found
assert not {"jaxcluster.wire", "jaxcluster.agreement.referee"} & {*sys.modules}
"""


def test_a_script_that_calls_agree_imports_little() -> None:
    """It takes 1 ms, and 35 ms beside jax. The limits leave room for a slow machine."""
    for _ in range(3):
        done = python("-c", f"import sys{AGREE}")
        assert done.returncode == 0, done.stderr
        plain, agree = map(float, done.stdout.split())
        if plain < 0.01 and agree < 0.1:
            return
    raise AssertionError(done.stdout)


def test_private_names_of_jax_stand_in_one_package() -> None:
    package = Path(jaxcluster.__file__).parent
    users = {
        str(path.relative_to(package).parent)
        for path in package.rglob("*.py")
        if re.search(r"^\s*(from|import) (jax\._src|jaxlib\b)|import _Jax", path.read_text(), re.M)
    }
    assert users == {"rank/private"}


# --------------------------------------------------------------------------- broad handlers

# A handler of any exception, with all that is indented below it.
BROAD = re.compile(
    r"^( *)(?:except (?:Base)?Exception|with .*suppress\((?:Base)?Exception\)).*\n(?:\1 +.*\n|\n)*",
    re.M,
)
REASON = re.compile(r"#|\b(?:raise|as|exc_info|print_exc|wrap_exception)\b|\.exception\(")


def test_who_catches_any_exception_hands_it_on_or_says_why() -> None:
    root = Path(jaxcluster.__file__).parent
    handlers = [
        found[0] for path in root.rglob("*.py") for found in BROAD.finditer(path.read_text())
    ]
    assert len(handlers) > 50
    assert [handler for handler in handlers if not REASON.search(handler)] == []
