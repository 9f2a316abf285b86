"""Which programs are kept for new processes, and under which keys. JAX in a process of its own."""

from __future__ import annotations

import json

import jax.numpy as jnp
import pytest
from helpers import python

from jaxcluster.engine.private import loaded

SCRIPT = """
import json
from dataclasses import dataclass
import jax, jax.numpy as jnp, numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jaxcluster.engine.private import fingerprint
from jaxcluster.engine.private.compilations import _key
from jaxcluster.engine.private.programs import is_made_together

jax.config.update("jax_num_cpu_devices", 2)  # on one device nothing is partitioned
mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.device_put(np.ones(4, np.float32), jax.NamedSharding(mesh, jax.P("i")))

def calls(function):
    return fingerprint.calls_into_process(jax.jit(function).lower(x).compiler_ir())

@custom_partitioning
def parted(v):
    return v + 1

parted.def_partition(
    infer_sharding_from_operands=lambda *_: None,
    partition=lambda *_: None,
    sharding_rule="i -> i",
)
like = jax.ShapeDtypeStruct((4,), np.float32)
found = {
    "plain": calls(lambda v: jnp.sin(v) + jax.random.normal(jax.random.key(0))),
    "pure_callback": calls(lambda v: jax.pure_callback(lambda w: w, like, v)),
    "debug.print": calls(lambda v: jax.debug.print("{}", v)),
    "custom_partitioning": calls(parted),
}

@dataclass(frozen=True)
class Device:
    id: int
    process_index: int
    device_kind: str = "cpu"

class Backend:
    def __init__(self, *devices, platform="cpu"):
        self.list, self.platform = devices, platform
    def devices(self):
        return self.list

a, b, c = Device(0, 0), Device(1, 1), Device(2, 2)
two, three = Backend(a, b), Backend(a, b, c)
other = Backend(a, Device(1, 1, "another"))
on = lambda *devices: np.array(devices, object)
found["same"] = _key("p", two, on(a)) == _key("p", Backend(a, b), on(a))
version, keys = jax.__version__, []
keys += [_key("p", two, on(a)), _key("q", two, on(a)), _key("p", two, on(b))]
keys += [_key("p", two, on(a, b)), _key("p", two, on(b, a)), _key("p", three, on(a))]
keys += [_key("p", other, on(a))]
jax.__version__ = "0"
keys += [_key("p", two, on(a))]
found["different"] = len(set(keys)) == len(keys)
gpus = Backend(a, b, platform="gpu")
some = on(a), on(a, b)
found["together"] = [
    is_made_together(backend, on_it.flat) for backend in (two, gpus, None) for on_it in some
]
print(json.dumps(found))
"""


def test_programs_and_places_are_told_apart() -> None:
    done = python("-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "plain": False,
        "pure_callback": True,
        "debug.print": True,
        "custom_partitioning": True,
        "same": True,
        "different": True,
        "together": [False, False, False, True, False, False],
    }


def test_an_executable_is_kept_until_nobody_has_it_and_another_one_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CUDA waits for all that runs: a collection on another thread must not drop the last one."""
    unloaded = []

    class Executable:
        def __del__(self) -> None:
            unloaded.append("gone")

    monkeypatch.setattr(loaded, "_loaded", {})
    is_idle = False
    monkeypatch.setattr(loaded, "is_ready", lambda array: is_idle)
    array = jnp.ones(2)
    used = Executable()
    loaded.note(used, "text")
    loaded.note(Executable())
    loaded.note(third := Executable())
    assert not unloaded  # something runs
    is_idle = True
    loaded.note(last := Executable())
    assert unloaded == ["gone"] and len(loaded._loaded) == 3
    assert loaded.text_of(used) == "text" and loaded.text_of(last) is None
    assert loaded.text_of(object()) is None
    assert array is not None and third is not None
