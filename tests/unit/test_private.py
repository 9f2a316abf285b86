"""Every private name of JAX that we use is where we expect it. In a process of its own (law 1)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import python

from jaxcluster.rank.private import programs

SCRIPT = """
import json
from jax._src import array, xla_bridge
from jaxcluster.rank.private import coordination, self_test
found = {"moved": dict(self_test.missing())}
del xla_bridge._jax.make_gloo_tcp_collectives, array.make_array_from_callback
found["then"] = sorted(self_test.missing())
found["backends"] = len(xla_bridge._backends)
print(json.dumps(found))
"""


def test_all_private_names_are_in_this_jax_and_one_that_has_moved_is_told() -> None:
    done = python("-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["moved"] == {}
    assert (found["then"], found["backends"]) == (["gloo address", "host values"], 0)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_kernels_that_each_process_tunes_make_no_other_program(
    monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    monkeypatch.setattr(programs, "_hlo_text", lambda text: text)
    texts = (f"tile={tile}\n x = f32[] {op}(y)" for tile in (1, 2) for op in ("add", "all-reduce"))
    backend = SimpleNamespace(platform=platform)
    given: dict[str, Any] = {"name": "f", "device_list": (), "input_avals": (), "keepalive": None}
    one, reduces, tuned, _ = (
        programs.describe(SimpleNamespace(**given, backend=backend, xla_executable=one)).fingerprint
        for one in texts
    )
    assert one != reduces
    assert (one == tuned) == (platform == "gpu")
