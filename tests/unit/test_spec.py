"""What a start is asked for, and what is chosen where nothing was said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jaxcluster.cluster import make_spec, starting
from jaxcluster.cluster import spec as asked
from jaxcluster.errors import UsageError
from jaxcluster.host import procfs
from jaxcluster.plan.repeated_start import are_alike
from jaxcluster.wire.forks import Exit


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives the test's machine devices."""

    def has(gpus: Sequence[str] = (), tpu_chips: int = 0, gpu_plugin: bool = True) -> None:
        for module in (asked, starting):
            monkeypatch.setattr(module, "host_gpus", lambda environ: list(gpus))
        monkeypatch.setattr(asked, "host_tpu_chips", lambda: tpu_chips)
        monkeypatch.setattr(asked, "gpu_plugin_installed", lambda *a: gpu_plugin)

    has()
    return has


@pytest.mark.parametrize(
    ("devices", "platform", "num_processes"),
    [
        ({}, "cpu", 2),
        ({"gpus": ["0", "1", "2"]}, "cuda", 3),
        ({"gpus": ["0", "1", "2"], "gpu_plugin": False}, "cpu", 2),
        ({"tpu_chips": 4}, "tpu", 4),
        ({"tpu_chips": 2}, "tpu", 1),  # which can't be split
    ],
)
def test_one_process_per_accelerator_that_is_here_else_two_on_cpu(
    machine: Any, devices: dict[str, Any], platform: str, num_processes: int
) -> None:
    machine(**devices)
    spec = make_spec()
    assert (spec.platform, spec.num_processes) == (platform, num_processes)


def test_local_device_ids_for_all_or_for_each(machine: Any) -> None:
    machine(gpus=["0", "1"])
    assert make_spec(2, local_device_ids=[1]).local_device_ids == [[1], [1]]
    assert make_spec(2, local_device_ids=[0, 1]).local_device_ids == [[0, 1], [0, 1]]
    assert make_spec(2, local_device_ids=[[0], [1]]).local_device_ids == [[0], [1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_processes": 0}, "-n must be a whole number from 1 up, not 0."),
        (
            {"devices_per_process": 0},
            "--devices-per-process must be a whole number from 1",
        ),
        ({"timeout_s": 0}, "--timeout must be seconds above 0, or a time such as 15m"),
        ({"timeout_s": float("nan")}, "2h, not nan."),
        ({"heartbeat_timeout_seconds": -5}, "--heartbeat-timeout-seconds must be a whole"),
        ({"coordinator_bind_address": "127.0.0.1:99999"}, "coordinator_bind_address is '127."),
        *(
            ({"coordinator_address": wrong}, f"coordinator_address is {wrong!r}: write host:port")
            for wrong in ("box:0", "box:-1", "9000", "box:", "unix:a", "unix:/" + "x" * 120)
        ),
        ({"local_device_ids": [9]}, "local_device_ids chooses among GPUs or TPU chips"),
        ({"platform": "cpu", "env": {"JAX_PLATFORMS": "tpu"}}, "asks for the platform 'tpu'"),
        ({"env": {"JAX_PLATFORMS": "vulkan"}}, "There is no platform 'vulkan'"),
        ({"env": {"JAX_NUM_CPU_DEVICES": "8"}}, "JAX_NUM_CPU_DEVICES is assigned by jaxcluster"),
        ({"env": {"JAX_PROCESS_ID": "0"}}, "JAX_PROCESS_ID is assigned by jaxcluster"),
        ({"env": {"A": 1}}, "env has 'A': 1, which is not text."),
        ({"name": "a b"}, "'a b' can't be a cluster's name"),
        ({"num_processes": 2, "local_device_ids": [[0]]}, "has 1 list for 2 ranks"),
        ({"detach": "no"}, "--detach must be True or False, not 'no'."),
        ({"launcher": "ssh", "hosts": "h", "direct": "no"}, "--direct must be True or False"),
        ({"name": 5}, "--name must be text, not 5."),
        ({"launcher": 5}, "--launcher must be text, not 5."),
        ({"coordinator_address": 5}, "--coordinator-address must be text, not 5."),
        ({"env": ["TOKEN=secret"]}, "--env must be of the form NAME=VALUE, not list."),
        ({"local_device_ids": 3}, "--local-device-ids must be 0,1 (every rank) or 0/1"),
        ({"nonsense": 1}, "--launcher local does not know --nonsense"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_started(
    machine: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make_spec(**arguments)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_platform_may_be_asked_for_as_jax_asks_for_it(machine: Any) -> None:
    """In the environment alone it would do nothing: each process is told its platform."""
    machine(gpus=["0"])
    assert make_spec(2, env={"JAX_PLATFORMS": "cpu"}).platform == "cpu"
    assert make_spec(2, env={"JAX_PLATFORMS": "gpu,cpu"}).platform == "cuda"
    assert make_spec(2, env={"JAX_PLATFORM_NAME": "tpu"}).platform == "tpu"
    assert make_spec(2, env={"JAX_PLATFORMS": ""}).platform == "cuda"
    assert make_spec(2, platform="cpu", env={"JAX_PLATFORMS": "cpu"}).platform == "cpu"


def test_a_launchers_options_are_kept_as_they_would_be_typed(machine: Any) -> None:
    spec = make_spec(launcher="ssh", hosts=["h1:2", "h2:2"], port=22, direct=True)
    assert spec.options == {"hosts": "h1:2,h2:2", "port": "22", "direct": True}
    assert make_spec(launcher="ssh", hosts="h1", direct=False).options == {"hosts": "h1"}
    asked = make_spec(launcher="ssh", hosts="h1:2,h2:2", port="22")
    assert not are_alike(spec, asked)
    for nodes in (0, 2.5, True, "two"):
        with pytest.raises(UsageError, match="--nodes must be a whole number from 1 up, not "):
            make_spec(launcher="slurm", nodes=nodes)


def test_the_number_of_cpu_devices_that_xla_flags_force_is_taken(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = "--xla_foo=1 --xla_force_host_platform_device_count=3"
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert make_spec(2, platform="cpu").devices_per_process == 3
    assert make_spec(2, platform="cpu", devices_per_process=2).devices_per_process == 2
    monkeypatch.delenv("XLA_FLAGS")
    assert make_spec(2, platform="cpu", env={"XLA_FLAGS": flags}).devices_per_process == 3


@pytest.mark.parametrize("name", ["JAX_MTLS_CERT_FILE", asked.VERIFIES])
def test_certificates_for_jax_are_refused_by_name(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is set") as error:
        make_spec(2, env={name: "1"})
    assert f"del os.environ['{name}']" in error.value.hint


def test_another_number_of_ranks_is_a_whole_one() -> None:
    spec = make_spec(2, platform="cpu")
    for three in (3, np.int64(3)):
        assert asked.resized(spec, three).num_processes == 3  # type: ignore[arg-type]
    for many in (2.5, 0):
        with pytest.raises(UsageError, match="must be a whole number from 1 up"):
            asked.resized(spec, many)  # type: ignore[arg-type]


def test_the_end_of_a_process_is_told_in_words_and_each_kill_for_want_of_memory_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = 5
    monkeypatch.setattr(procfs, "oom_kills", lambda: counted)
    ends = procfs.Exits()

    def told(code: int, host: str = "") -> str:
        return ends.describe(Exit("rank", 0, code, host=host))

    assert [told(code) for code in (0, 7, -9)] == [
        "exit code 0",
        "exit code 7",
        "killed by SIGKILL",
    ]
    counted = 6
    assert [told(code) for code in (-6, -99)] == ["killed by SIGABRT", "killed by signal 99"]
    assert told(-9, "h2") == "killed by SIGKILL on host h2"  # this machine's is not to blame
    assert told(-9) == "killed by SIGKILL by the kernel: out of memory"
    assert told(-9) == "killed by SIGKILL"
