"""What cells set up besides names is there again on new processes, or is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import Home, plain, until
from overhosts import send_signal

import jaxcluster
from jaxcluster.errors import CellFailed, RankDied


@pytest.fixture
def ranks(home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(2, devices_per_process=2, name="around", env={"GIVEN": "1"}) as cluster:
        cluster.run("import jax, jax.numpy as jnp, numpy as np, os, sys\nr = jax.process_index()")
        yield cluster


OPTIONS = """
from jax._src import config
level = config.int_flag('mine_level', 1, help='')
config.int_flag('mine_other', 1, help='')
"""
# What a cell does, and what shows it in a later one. Each must hold after a restart as before it.
SETTINGS = {
    "jax_random_seed_offset": (
        "jax.config.update('jax_random_seed_offset', 42)",
        "jax.config.jax_random_seed_offset, jax.random.bits(jax.random.key(0)).item()",
    ),
    "jax_enable_x64": ("jax.config.update('jax_enable_x64', True)", "jnp.arange(2.0).dtype"),
    "an option that a module defines": (
        f"open('mine_options.py', 'w').write({OPTIONS!r})\n"
        "sys.path.insert(0, os.getcwd())\n"
        "import mine_options\n"
        "jax.config.update('mine_level', 3)",
        "jax.config.values['mine_level'], 'mine_other' in jax.config.values",
    ),
    "jax_default_device": (
        "jax.config.update('jax_default_device', jax.local_devices()[1])",
        "jax.config.jax_default_device == jax.local_devices()[1]",
    ),
    "jax.set_mesh": (
        "jax.set_mesh(jax.make_mesh((4,), ('i',)))",
        "jax.sharding.get_mesh().axis_names",
    ),
    "a context that was entered": (
        "jax.default_matmul_precision('float32').__enter__()",
        "jax.config.jax_default_matmul_precision",
    ),
    "a mesh that was entered": (
        "jax.make_mesh((4,), ('j',)).__enter__()",
        "sys.modules['jax._src.mesh'].thread_resources.env.physical_mesh.axis_names",
    ),
    "a pytree of Python's": (
        "import types\n"
        "jax.tree_util.register_pytree_node(\n"
        "    types.SimpleNamespace, lambda s: ((s.a,), None),\n"
        "    lambda _, c: types.SimpleNamespace(a=c[0]))\n"
        "held = types.SimpleNamespace(a=1.0)",
        "jax.tree.leaves(held), jax.tree.map(lambda x: x + 1, held)",
    ),
    "a pytree of a module": (
        "open('mine_model.py', 'w').write(\n"
        "    'import dataclasses\\n@dataclasses.dataclass\\nclass Model:\\n    w: float = 1.0\\n'\n"
        ")\n"
        "sys.path.insert(0, os.getcwd())\n"
        "import mine_model\n"
        "jax.tree_util.register_dataclass(mine_model.Model, ['w'], [])",
        "jax.tree.leaves(mine_model.Model())",
    ),
    "np.seterr": ("np.seterr(divide='raise')", "np.geterr()['divide']"),
    "np.seterrcall": ("np.seterrcall(lambda kind, flag: 7)", "np.geterrcall()('a', 1)"),
    "%precision": (
        "%precision 3", "get_ipython().display_formatter.format(1 / 3)[0]['text/plain']",
    ),
    "np.set_printoptions": (
        "np.set_printoptions(threshold=7, formatter={'int': lambda x: '?'})",
        "np.get_printoptions()['threshold'], np.array([1])",
    ),
    "os.environ": (
        "os.environ['MINE'] = 'yes'; os.environ.pop('GIVEN')",
        "os.environ['MINE'], 'GIVEN' in os.environ",
    ),
    "decimal": ("import decimal; decimal.getcontext().prec = 5", "decimal.Decimal(1) / 3"),
    "the locale": (
        "import locale; locale.setlocale(locale.LC_ALL, 'C.UTF-8')", "locale.setlocale(0)",
    ),
    "warnings": (
        "import warnings; warnings.filterwarnings('error', message='mine')",
        "warnings.filters[0][0], warnings.filters[0][1].pattern",
    ),
    "levels": (
        "import logging; logging.getLogger('mine').setLevel(7)",
        "logging.getLogger('mine').level",
    ),
    "log handlers": (
        "import logging\n"
        "logging.basicConfig(format='<%(message)s>', stream=sys.stdout, force=True)",
        "logging.warning('heard')",
    ),
    "signal handlers": (
        "import signal; counted = []; signal.signal(signal.SIGUSR2, lambda *_: counted.append(1))",
        "os.kill(os.getpid(), signal.SIGUSR2), len(counted)",
    ),
    "arguments": ("sys.argv = ['train', '--lr', '3']", "sys.argv"),
    "the recursion limit": ("sys.setrecursionlimit(2345)", "sys.getrecursionlimit()"),
    "the order of sys.path": ("sys.path.insert(0, '/mine')", "sys.path[0]"),
    "the folder": ("os.makedirs('deep', exist_ok=True); os.chdir('deep')", "os.getcwd()[-5:]"),
    "gc": ("import gc; gc.disable()", "gc.isenabled()"),
    "timeouts": ("import socket; socket.setdefaulttimeout(3)", "socket.getdefaulttimeout()"),
    "from __future__": (
        "from __future__ import annotations",
        "get_ipython().compile.flags & annotations.compiler_flag",
    ),
    "%xmode": ("%xmode Plain", "get_ipython().InteractiveTB.mode"),
    "%alias": ("%alias mine echo mine", "get_ipython().alias_manager.is_alias('mine')"),
    "%load_ext": (
        "%load_ext autoreload\n%autoreload 2",
        "'IPython.extensions.autoreload' in get_ipython().extension_manager.loaded,"
        " get_ipython().find_line_magic('autoreload').__self__._reloader.check_all",
    ),
    "matplotlib": (
        "import matplotlib; matplotlib.rcParams['lines.linewidth'] = 9",
        "matplotlib.rcParams['lines.linewidth']",
    ),
    "random numbers": (
        "import random; np.random.seed(3); random.seed(4); np.random.rand(); state = None",
        "np.random.get_state()[2], hash(random.getstate())",
    ),
}  # fmt: skip


def test_what_cells_have_set_is_set_on_new_processes(
    ranks: jaxcluster.Cluster, tmp_path: Path
) -> None:
    ranks.run(f"os.chdir({str(tmp_path)!r})", show=False)
    before = {}
    plain = {}
    for name, (_, show) in SETTINGS.items():
        if name not in ("signal handlers",):
            source = f"try: print({show})\nexcept Exception as error: print(type(error))"
            plain[name] = ranks.run(source, show=False).stdout()
    for set_up, _ in SETTINGS.values():
        ranks.run(set_up, show=False)
    for name, (_, show) in SETTINGS.items():
        before[name] = ranks.run(f"print({show})", show=False).stdout()
    assert [n for n in plain if plain[n] == before[n] and n != "log handlers"] == []
    line = ranks.restart()
    assert "Lost" not in line
    for name, (_, show) in SETTINGS.items():
        if name == "signal handlers":
            continue  # it counts
        assert ranks.run(f"print({show})", show=False).stdout() == before[name], name
    counted = ranks.run(f"print({SETTINGS['signal handlers'][1]})", show=False).stdout()
    assert counted == "None 2\n"


def test_what_a_client_has_entered_or_set_is_there_in_new_processes(
    ranks: jaxcluster.Cluster,
) -> None:
    ranks.client[:].execute(
        "jax.numpy_rank_promotion('raise').__enter__(); jax.set_mesh(jax.make_mesh((4,), ('i',)))",
        block=True,
    )
    ranks.restart()
    show = "print(jax.config.jax_numpy_rank_promotion, jax.sharding.get_mesh().axis_names)"
    assert ranks.run(show, show=False).stdout() == "raise ('i',)\n"


def test_a_cell_that_forbids_to_trace_does_not_keep_us_from_it(ranks: jaxcluster.Cluster) -> None:
    """The check of the ranks and the keys of new processes are ours to trace."""
    ranks.run("key = jax.random.key(3)\njax.config.update('jax_no_tracing', True)")
    pids = list(ranks.record.pids)
    assert "Back in lockstep" in ranks.resync()
    assert ranks.record.pids == pids
    for _ in range(2):  # the second time processes save what they can have from a file alone
        assert "Lost" not in ranks.restart()
        assert ranks.pull("key").tolist() == [0, 3]
    with pytest.raises(CellFailed, match="'no_tracing' is set"):
        ranks.run("jax.jit(lambda a: a + 1)(1)", show=False)


def test_what_can_not_be_set_again_is_named(ranks: jaxcluster.Cluster) -> None:
    ranks.run(
        "import logging, threading, signal\n"
        "class Mine(logging.Handler): pass\n"
        "logging.getLogger('mine').addHandler(Mine())\n"
        "lock = threading.Lock()\n"
        "held = lock.acquire()\n"
        "signal.signal(signal.SIGUSR2, (lambda held: lambda *_: held)(lock))",
        show=False,
    )
    line = ranks.restart()
    assert "logging handler 0 of mine (a logging handler can't be saved)" in line
    assert "signal SIGUSR2 (a lock that is held can't be saved)" in line


def test_handlers_that_imported_modules_have_added_are_there_once(
    ranks: jaxcluster.Cluster,
) -> None:
    """Most libraries add one that does nothing."""
    show = "print([type(one).__name__ for one in logging.getLogger('requests').handlers])"
    ranks.run("import logging, requests\nlog = logging.getLogger('twice')", show=False)
    ranks.run("log.addHandler(logging.StreamHandler())", show=False)
    for _ in range(2):
        assert "requests" not in ranks.restart()
        assert ranks.run(show, show=False).stdout(1) == "['NullHandler']\n"
        assert ranks.run("print(len(log.handlers))", show=False).stdout(1) == "1\n"


def test_settings_that_end_with_the_task_of_a_cell_stay(ranks: jaxcluster.Cluster) -> None:
    """numpy and decimal keep them in a context, as user code does with ContextVar."""
    ranks.run("import decimal, contextvars\nvar = contextvars.ContextVar('v')\nvar.set(1)")
    ranks.run("import asyncio\nawait asyncio.sleep(0)\nnp.seterr(over='raise')\nvar.set(2)")
    record = ranks.run("print(var.get(), np.geterr()['over'])", show=False)
    assert [record.stdout(rank) for rank in range(2)] == ["2 raise\n"] * 2


def test_views_share_memory_again(ranks: jaxcluster.Cluster) -> None:
    ranks.run("base = np.arange(1000.0)\nview = base[:500]\nrow = base.reshape(10, 100)[2]")
    for _ in range(2):
        ranks.restart()
        source = "base[200] += 1\nprint(view.base is base, view[200], row[0])"
        record = ranks.run(source, show=False)
    assert [record.stdout(rank) for rank in range(2)] == ["True 202.0 202.0\n"] * 2


@pytest.mark.parametrize("seeded", [True, False], ids=["seeded alike", "each its own"])
def test_random_numbers_of_another_rank_are_not_taken(home: Home, seeded: bool) -> None:
    with jaxcluster.start(3, devices_per_process=1, name="random") as ranks:
        ranks.run("import numpy as np", show=False)
        seed = "1" if seeded else ""
        ranks.run(f"np.random.seed({seed})\nx = np.random.rand()", show=False)
        send_signal(ranks, 1)
        until(lambda: 1 in ranks.dead, "word of the death", 5)
        with pytest.raises(RankDied) as caught:
            ranks.run("1", show=False)
        record = ranks.run("print(np.random.rand())", show=False)
        drawn = {record.stdout(rank) for rank in range(3)}
        assert len(drawn) == (1 if seeded else 3)
        named = "np.random's state (each rank had its own, and one rank" in str(caught.value)
        assert named != seeded


def test_a_checkpoint_says_why_a_name_is_not_there(
    ranks: jaxcluster.Cluster, tmp_path: Path
) -> None:
    ranks.run("lines = (line for line in 'abc')\nkept = 1\nnp.seterr(divide='raise')", show=False)
    ranks.checkpoint("c", tmp_path)
    ranks.restart(clean=True)
    ranks.restore("c", tmp_path)
    told = r"name 'lines' was not saved in checkpoint 'c' \(a generator can't be saved\)"
    with pytest.raises(jaxcluster.JaxClusterError, match=told):
        ranks.run("lines", show=False)
    record = ranks.run("import numpy as np\nprint(np.geterr()['divide'])", show=False)
    assert record.stdout(1) == "raise\n"


def test_a_cell_that_ran_before_a_restart_still_shows_its_source(ranks: jaxcluster.Cluster) -> None:
    ranks.run("def g(a):\n    # before the restart\n    return jnp.ones(2) @ jnp.ones(a)")
    ranks.restart()
    ranks.restart()
    with pytest.raises(CellFailed) as raised:
        ranks.run("g(3)")
    shown = plain("\n".join(raised.value.traceback))
    assert "# before the restart" in shown
    assert "----> 3     return jnp.ones(2) @ jnp.ones(a)" in shown
    assert "in g(a)" in shown
    assert "/tmp/ipykernel" not in shown  # but the cell's number
    assert "site-packages" not in shown


def test_a_new_rank_has_no_other_ranks_own_setting(home: Home) -> None:
    with jaxcluster.start(3, devices_per_process=1, name="own-settings") as cluster:
        cluster.run(
            "import jax, os\nr = jax.process_index()\n"
            "os.environ.update(OUT=f'/tmp/{r}', ALL='yes')\n"
            "jax.config.update('jax_default_device', jax.local_devices()[0])"
        )
        with pytest.raises(RankDied, match=r"os\.environ OUT \(each rank had its own"):
            cluster.run("if r == 2: os._exit(1)")
        show = "print(os.environ.get('OUT'), os.environ['ALL'])"
        shown = cluster.run(show, show=False)
        expected = ["/tmp/0 yes\n", "/tmp/1 yes\n", "None yes\n"]
        assert [shown.stdout(rank) for rank in range(3)] == expected
        assert "os.environ OUT" in cluster.resize(4)
        shown = cluster.run(show, show=False)
        assert [shown.stdout(rank) for rank in range(4)] == [*expected, "None yes\n"]


def test_a_default_of_ipythons_that_one_rank_has_asked_for_is_not_its_own(home: Home) -> None:
    with jaxcluster.start(2, devices_per_process=1, name="defaults") as cluster:
        cluster.run("get_ipython().autocall", ranks=[0], show=False)
        assert "%config" not in cluster.resize(3)
        cluster.run("%config ZMQInteractiveShell.autocall = 1", ranks=[0], show=False)
        assert "%config ZMQInteractiveShell.autocall: rank 3" in cluster.resize(4)
