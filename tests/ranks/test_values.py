"""Values between a process and its ranks: whole, equal, and without a collective."""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxcluster
from jaxcluster.cluster import transfer
from jaxcluster.errors import NotSerialisable, RankError, TransferError, UsageError

PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
LARGE = 300_000  # elements: well above what a frame is quicker for


@pytest.fixture(params=["memory", "refused memory", "agent"])
def way(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, cluster: jaxcluster.Cluster
) -> Iterator[str]:
    """The ways of large arrays: through memory, here or by the agent, and as frames if refused."""
    monkeypatch.setattr(cluster.world, "is_readable", True)
    if request.param == "agent":
        monkeypatch.setattr(transfer, "_is_here", lambda world, rank: False)
    if request.param == "refused memory":

        def refuse(*_: object) -> None:
            raise PermissionError

        monkeypatch.setattr(transfer, "read_memory", refuse)
    yield request.param
    assert cluster.world.is_readable or request.param == "refused memory"


@pytest.fixture(autouse=True)
def no_file_left_over() -> Iterator[None]:
    """No shared memory stays open after a push or pull, whatever became of it."""
    before = shared_files()
    yield
    gc.collect()
    assert shared_files() <= before


def shared_files() -> set[str]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the folder's own is closed
            if "jaxcluster-value" in os.readlink(descriptor):
                found.add(descriptor.name)
    return found


# --------------------------------------------------------------------------- pull


@pytest.mark.skipif(
    not (PAGES.exists() and "[madvise]" in PAGES.read_text())
    or str(os.confstr("CS_GNU_LIBC_VERSION")) < "glibc 2.35",
    reason="glibc 2.35 asks for them, where the system wants that",
)
def test_large_arrays_of_ranks_may_be_on_huge_pages(cluster: jaxcluster.Cluster) -> None:
    """Pulls are faster then. The system decides; a rank asks for them: flag hg."""
    source = (
        "import jax, re\n"
        "large = jax.device_put(1.0, jax.local_devices()[0]) + jax.numpy.ones(1 << 23)\n"
        "at = large.addressable_shards[0].data.unsafe_buffer_pointer()\n"
        "for area in re.split(r'\\n(?=[0-9a-f]+-)', open('/proc/self/smaps').read()):\n"
        "  start, stop = (int(end, 16) for end in area.split()[0].split('-'))\n"
        "  if start <= at < stop: print(' hg' in area.split('VmFlags:')[1])"
    )
    record = cluster.run(source, show=False)
    assert {record.stdout(rank) for rank in record.ranks} == {"True\n"}


def test_an_array_that_spans_processes_comes_whole(cluster: jaxcluster.Cluster, way: str) -> None:
    np.testing.assert_array_equal(cluster["x"], np.arange(32).reshape(4, 8))
    cluster.run(
        f"wide = jax.device_put(np.arange({LARGE} * 8.0).reshape(8, -1),"
        " NamedSharding(mesh, P('i', 'j')))"
    )
    pulled = cluster["wide"]
    np.testing.assert_array_equal(pulled, np.arange(LARGE * 8).reshape(8, -1))
    assert pulled.dtype == np.float32
    pulled[0, 0] = 7  # it is the notebook's own


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "complex64", "bool_"])
def test_dtypes_are_kept(cluster: jaxcluster.Cluster, dtype: str) -> None:
    cluster.run(
        f"d = jax.device_put(jnp.arange({LARGE}).astype(jnp.{dtype}),"
        " NamedSharding(mesh, P(('i', 'j'))))\nsmall = jnp.arange(3).astype(jnp." + dtype + ")"
    )
    for name, size in (("d", LARGE), ("small", 3)):
        pulled = cluster[name]
        assert (pulled.dtype.name, pulled.shape) == (dtype.rstrip("_"), (size,))
        assert complex(pulled[2]) in (1, 2)


def test_scalars_empty_and_local_arrays(cluster: jaxcluster.Cluster) -> None:
    cluster.run("total = jnp.sum(x)\nempty = jnp.zeros((0, 3))\nlocal = jnp.arange(5) + rank")
    assert (cluster["total"].shape, int(cluster["total"])) == ((), 496)
    assert cluster["empty"].shape == (0, 3)
    np.testing.assert_array_equal(cluster["local"], np.arange(5))  # rank 0's


def test_pytrees_of_spanning_arrays_keep_their_structure(
    cluster: jaxcluster.Cluster, way: str
) -> None:
    cluster.run(
        "from collections import OrderedDict, namedtuple\n"
        "big = jax.device_put(np.arange(80_000.0), NamedSharding(mesh, P(('i', 'j'))))\n"
        "tree = {'w': x, 'list': [big, (x, 3)], 'text': 'é', 'none': None,"
        " 'np': np.ones((400, 400)), 'order': OrderedDict(b=1, a=2)}"
    )
    tree = cluster["tree"]
    assert list(tree) == ["w", "list", "text", "none", "np", "order"]
    np.testing.assert_array_equal(tree["w"], np.arange(32).reshape(4, 8))
    np.testing.assert_array_equal(tree["list"][0], np.arange(80_000))
    assert tree["list"][1][0] is tree["w"]  # the same array stays the same
    assert tree["list"][1][1] == 3
    assert (tree["text"], tree["none"]) == ("é", None)
    assert tree["np"].sum() == 160_000
    assert tree["order"] == collections.OrderedDict(b=1, a=2)


def test_classes_of_the_notebook_that_jax_makes_are_plain_here(
    cluster: jaxcluster.Cluster, no_jax: None
) -> None:
    """A state made of a library's classes comes as dicts and lists where that needs jax."""
    cluster.run(
        "from typing import NamedTuple\n"
        "class State(NamedTuple):\n    params: dict\n    step: int\n"
        "state = State({'w': x}, 7)\n"
        "key = jax.random.key(0)\nold_key = jax.random.PRNGKey(0)"
    )
    state = cluster["state"]
    assert (type(state).__name__, state.step) == ("State", 7)
    np.testing.assert_array_equal(state.params["w"], np.arange(32).reshape(4, 8))
    np.testing.assert_array_equal(cluster["key"], cluster["old_key"])
    assert "jax" not in sys.modules


def test_an_object_of_a_cells_registered_dataclass_is_of_its_class_here_and_there(
    cluster: jaxcluster.Cluster, no_jax: None
) -> None:
    cluster.run(
        "import dataclasses\n"
        "@jax.tree_util.register_dataclass\n"
        "@dataclasses.dataclass\nclass Params:\n    w: jax.Array\n    b: jax.Array | None = None\n"
        "    def norm(self): return jnp.linalg.norm(self.w)\n"
        "    def size(self): return self.w.size\n"
        "params = Params(x)"
    )
    pulled = cluster["params"]
    assert (type(pulled).__name__, pulled.b, pulled.size()) == ("Params", None, 32)
    np.testing.assert_array_equal(pulled.w, np.arange(32).reshape(4, 8))
    with pytest.raises(ImportError, match=r"linalg.norm is not here: run it on the ranks"):
        pulled.norm()
    assert "jax" not in sys.modules
    cluster["back"] = pulled
    told = cluster.run(
        "print(type(back) is Params, len(jax.tree.leaves(back)), float(back.norm()) > 0)",
        show=False,
    )
    assert told.stdout(0) == "True 1 True\n"


def test_what_comes_as_dicts_and_lists_says_so(cluster: jaxcluster.Cluster, no_jax: None) -> None:
    cluster.run("specs, spec = {'a': (P('i'), 3)}, P('i')")
    for name in ("spec", "specs"):
        with pytest.raises(NotSerialisable, match="the notebook does not import") as caught:
            cluster[name]
        assert f"%spmd print({name})" in str(caught.value)
    cluster.run("import optax\nstate = optax.adam(0.1).init({'w': x})")
    with pytest.warns(UserWarning, match="state is here as dicts and lists: its classes need jax"):
        assert set(cluster["state"]) == {0}


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        ("zzz", TransferError, "no variable 'zzz' (%spmd %who lists the ranks' variables)"),
        ("generator", NotSerialisable, "Rank 0: generator can't be pickled: TypeError: "),
    ],
)
def test_what_can_not_be_pulled_says_why(
    cluster: jaxcluster.Cluster, name: str, error: type[Exception], told: str
) -> None:
    cluster.run("generator = (i for i in range(3))")
    with pytest.raises(error) as caught:
        cluster[name]
    assert told in str(caught.value)


def test_what_differs_between_ranks_names_them(cluster: jaxcluster.Cluster) -> None:
    cluster.run("uneven = [x] if rank != 2 else []")
    with pytest.raises(TransferError) as caught:
        cluster["uneven"]
    assert "uneven is not the same on all ranks: fewer arrays on rank 2." in str(caught.value)
    cluster.run("missing = x")
    cluster.run("del missing", ranks=[3])
    with pytest.raises((TransferError, RankError), match="Rank 3: no variable 'missing'"):
        cluster["missing"]


# --------------------------------------------------------------------------- push


def test_values_are_bound_on_all_ranks_and_come_back_equal(
    cluster: jaxcluster.Cluster, way: str
) -> None:
    large = np.arange(LARGE, dtype=np.float64)
    value = {
        "large": large,
        "fortran": np.asfortranarray(large.reshape(-1, 100)),
        "strided": np.arange(2 * LARGE)[::2],
        "small": [1, 2.5, "three", None, {4}, np.float32(0.5)],
    }
    cluster.push({"value": value, "number": 3})
    record = cluster.run(
        "print(number, value['large'].sum(), (value['fortran'][:, 5] % 100 == 5).all(),"
        " value['strided'][-1], *value['small'])",
        show=False,
    )
    want = f"3 {large.sum()} True {2 * LARGE - 2} 1 2.5 three None {{4}} 0.5\n"
    assert [record.stdout(rank) for rank in range(4)] == [want] * 4
    back = cluster["value"]
    for name in ("large", "fortran", "strided"):
        np.testing.assert_array_equal(back[name], value[name])
    assert back["small"] == value["small"]


class ForOthersThanRank1:
    """It can't be read there, as what is made of a module that one host lacks."""

    def __reduce__(self) -> Any:
        return eval, ("1 if __import__('jax').process_index() != 1 else 1 / 0",)


def test_what_one_rank_can_not_read_is_bound_on_none(cluster: jaxcluster.Cluster, way: str) -> None:
    cluster["lr"] = 0.5
    with pytest.raises(RankError, match="division by zero"):
        cluster.push({"lr": 5.0, "large": np.ones(LARGE), "other": ForOthersThanRank1()})
    record = cluster.run("print(lr, 'other' in globals())", show=False)
    assert [record.stdout(rank) for rank in range(4)] == ["0.5 False\n"] * 4


def test_a_pushed_array_is_each_ranks_own(cluster: jaxcluster.Cluster, way: str) -> None:
    mine = np.zeros(LARGE)
    cluster.push({"shared": mine})
    record = cluster.run("shared[:] = rank + 1\nprint(shared.sum())", show=False)
    assert [float(record.stdout(r)) for r in range(4)] == [LARGE * (r + 1.0) for r in range(4)]
    assert mine.sum() == 0


def test_values_may_be_bound_on_some_ranks(cluster: jaxcluster.Cluster) -> None:
    cluster["role"] = "other"
    cluster.push({"role": "chosen"}, ranks=[1, 2])
    record = cluster.run("print(role)", show=False)
    assert [record.stdout(r).strip() for r in range(4)] == ["other", "chosen", "chosen", "other"]
    with pytest.raises(UsageError, match="There is no rank 9"):
        cluster.push({"a": 1}, ranks=[9])


def test_functions_and_classes_of_the_notebook_travel(cluster: jaxcluster.Cluster) -> None:
    factor = 3
    namespace: dict[str, Any] = {"__name__": "__main__", "factor": factor}
    exec("def triple(n):\n    return n * factor\nclass Thing:\n    n = 5", namespace)
    cluster.push({"triple": namespace["triple"], "thing": namespace["Thing"]()})
    assert cluster.run("print(triple(thing.n))", show=False).stdout(3) == "15\n"


def test_a_push_and_a_pull_wait_their_turn_behind_cells(cluster: jaxcluster.Cluster) -> None:
    cluster.run("turn = 0")
    cells = [cluster.submit("time.sleep(0.1)\nseen = turn"), cluster.submit("turn += 1")]
    cluster.push({"turn": 5})
    cells.append(cluster.submit("turn += 1"))
    assert cluster["turn"] == 6
    for cell in cells:
        cell.wait()
    assert cluster["seen"] == 0


def test_a_module_that_only_the_notebook_has_is_named(
    cluster: jaxcluster.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_in_the_notebook.py").write_text("class Thing:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_in_the_notebook  # type: ignore[import-not-found]

    with pytest.raises((RankError, TransferError), match="only_in_the_notebook"):
        cluster.push({"thing": only_in_the_notebook.Thing()})
    monkeypatch.delitem(sys.modules, "only_in_the_notebook")
