"""The plan of the ranks: devices, environment and arguments, with no process started."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest

from jaxcluster.errors import PlanError, UsageError
from jaxcluster.plan.placement import (
    TPU_TOPOLOGY,
    RankPlan,
    choose_platform,
    default_num_processes,
    describe_plan,
    plan_ranks,
)
from jaxcluster.plan.spec import ALL, check_spec
from jaxcluster.wire import ClusterSpec, EngineFacts, InitializeRequest


def fact(rank: int, host: str = "box", **more: Any) -> EngineFacts:
    return EngineFacts(
        rank=rank,
        pid=1000 + rank,
        hostname=host,
        host_key=f"boot-of-{host}",
        jax="0.10.2",
        **more,
    )


def plan(n: int, facts: Sequence[EngineFacts] | None = None, **spec: Any) -> RankPlan:
    return plan_ranks(
        ClusterSpec(name="main", num_processes=n, **spec),
        [fact(rank) for rank in range(n)] if facts is None else facts,
        coordinator="127.0.0.1:41234",
        collectives_addresses=[f"127.0.0.{rank + 1}" for rank in range(n)],
    )


def gpu_plan(n: int, gpus: Sequence[str], **spec: Any) -> RankPlan:
    facts = [fact(rank, gpus=list(gpus)) for rank in range(n)]
    return plan(n, facts, platform="cuda", **spec)


def tpu_plan(n: int, chips: int, **spec: Any) -> RankPlan:
    return plan(n, [fact(rank, tpu_chips=chips) for rank in range(n)], platform="tpu", **spec)


def visible_gpus(made: RankPlan) -> list[str | None]:
    return [request.env.get("CUDA_VISIBLE_DEVICES") for request in made.requests]


# --------------------------------------------------------------------------- arguments


def test_cpu_ranks_get_jax_arguments_threads_and_their_own_gloo_address() -> None:
    made = plan(2, devices_per_process=4, timeout_s=30.5)
    assert made.requests[1] == InitializeRequest(
        process_id=1,
        num_processes=2,
        coordinator_address="127.0.0.1:41234",
        coordinator_bind_address="127.0.0.1:41234",
        local_device_ids=None,
        initialization_timeout=30,
        heartbeat_timeout_seconds=100,
        platforms="cpu",
        num_cpu_devices=4,
        collectives_address="127.0.0.2",
        env={"NPROC": "16"},
    )


def test_hosts_with_enough_cores_are_left_to_size_xlas_pool_of_threads() -> None:
    facts = [fact(0, "big", cores=64), fact(1, "even", cores=16), fact(2, "small", cores=15)]
    assert [one.env for one in plan(3, facts).requests] == [{}, {}, {"NPROC": "16"}]
    chosen = plan(3, facts, env={"NPROC": "4"})
    assert [one.env for one in chosen.requests] == [{"NPROC": "4"}] * 3


@pytest.mark.parametrize(
    ("address", "bind", "found"),
    [
        ("127.0.0.1:9000", None, ("127.0.0.1:9000", "127.0.0.1:9000")),
        ("localhost:9000", None, ("localhost:9000", "localhost:9000")),
        ("[::1]:9000", None, ("[::1]:9000", "[::1]:9000")),
        ("10.0.0.5:9000", None, ("10.0.0.5:9000", None)),
        (None, "0.0.0.0:9000", ("127.0.0.1:9000", "0.0.0.0:9000")),
    ],
)
def test_a_coordinator_listens_on_loopback_where_that_is_enough(
    address: str | None, bind: str | None, found: tuple[str, str | None]
) -> None:
    made = plan(2, coordinator_address=address, coordinator_bind_address=bind).requests[0]
    assert (made.coordinator_address, made.coordinator_bind_address) == found


# --------------------------------------------------------------------------- GPU


@pytest.mark.parametrize(
    ("n", "gpus", "each", "seen", "unused"),
    [
        (2, "6 3", None, ["6", "3"], ""),
        (2, "GPU-8f3a MIG-11d2", None, ["GPU-8f3a", "MIG-11d2"], ""),
        (2, "0 1 2 3", None, ["0,1", "2,3"], ""),
        (1, "0 1 2 3", None, ["0,1,2,3"], ""),
        (3, "0 1 2 3", None, ["0", "1", "2"], "3"),
        (2, "0 1 2 3", 1, ["0", "1"], "2,3"),
    ],
)
def test_the_gpus_of_a_host_are_divided_among_its_ranks(
    n: int, gpus: str, each: int | None, seen: list[str], unused: str
) -> None:
    made = gpu_plan(n, gpus.split(), devices_per_process=each, env={"CUDA_VISIBLE_DEVICES": "9"})
    assert visible_gpus(made) == seen
    assert made.notes == ((f"no rank uses GPU {unused} of box",) if unused else ())


def test_gpus_of_hosts_and_of_single_processes_are_not_mixed() -> None:
    facts = [fact(rank, "aab"[rank], gpus=["0", "1", "2", "3"]) for rank in range(3)]
    assert visible_gpus(plan(3, facts, platform="cuda")) == ["0,1", "2,3", "0,1"]  # equally many
    facts = [fact(rank, gpus=[str(3 - rank)]) for rank in range(4)]  # by a scheduler
    assert visible_gpus(plan(4, facts, platform="cuda")) == ["3", "2", "1", "0"]
    small, large = fact(0, gpus=["0"]), fact(1, gpus=["0", "1"])  # two hosts of one name
    facts = [dataclasses.replace(small, host_key="a"), dataclasses.replace(large, host_key="b")]
    assert visible_gpus(plan(2, facts, platform="cuda")) == ["0", "0"]


def test_more_processes_than_gpus_says_what_to_type() -> None:
    with pytest.raises(PlanError) as caught:
        gpu_plan(4, ["0", "1"])
    assert str(caught.value) == (
        "4 processes on 1 host need 4 GPUs, and a GPU can't be shared: box has 2 GPUs (0,1) "
        "for ranks 0-3.\n"
        "Try: %jaxcluster start -n 2   or   %jaxcluster start -n 4 --platform cpu\n"
        "From NCCL 2.30 on, ranks can share a GPU, each with a part of its memory: --env "
        "NCCL_MULTI_RANK_GPU_ENABLE=1"
    )


SHARE = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def test_ranks_share_a_gpu_where_nccl_is_told_so_each_with_a_part_of_its_memory() -> None:
    made = gpu_plan(4, ["5", "6"], env=SHARE)
    assert visible_gpus(made) == ["5", "5", "6", "6"]
    assert made.devices == ("GPU 5 (1/2)",) * 2 + ("GPU 6 (1/2)",) * 2
    fractions = {r.env["XLA_PYTHON_CLIENT_MEM_FRACTION"] for r in made.requests}
    assert fractions == {"0.375"}
    assert visible_gpus(gpu_plan(3, ["5", "6"], env=SHARE)) == ["5", "5", "6"]
    mine = gpu_plan(2, ["0"], env={**SHARE, "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.1"})
    assert mine.requests[1].env["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.1"
    mine = gpu_plan(2, ["0"], env={**SHARE, "XLA_CLIENT_MEM_FRACTION": "0.1"})  # its other name
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in mine.requests[1].env
    alone = gpu_plan(2, ["0", "1"], env=SHARE)
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in alone.requests[0].env


def test_all_devices_of_a_host_are_shared_out_evenly_among_its_ranks() -> None:
    assert visible_gpus(gpu_plan(1, ["0", "1", "2"], devices_per_process=ALL)) == ["0,1,2"]
    assert visible_gpus(gpu_plan(2, ["0", "1", "2", "3"], devices_per_process=ALL)) == [
        "0,1",
        "2,3",
    ]
    assert tpu_plan(1, 4, devices_per_process=ALL).devices == ("TPU 0,1,2,3",)
    assert default_num_processes("cuda", ["0", "1", "2", "3"], 0, ALL) == 1
    assert default_num_processes("cuda", ["0", "1", "2", "3"], 0, 2) == 2
    facts = [fact(0, "a", gpus=["0", "1"]), fact(1, "b", gpus=["0"])]
    uneven = plan(2, facts, platform="cuda", devices_per_process=ALL)
    assert (visible_gpus(uneven), uneven.notes) == (["0", "0"], ("no rank uses GPU 1 of a",))


def test_a_gpu_that_others_use_is_noted_once() -> None:
    used = "GPU 0 has 60.0 GiB of its 80.0 GiB in use by process 7 (python train.py)"
    facts = [fact(rank, "a", gpus=["0", "1"], gpus_in_use=[used]) for rank in range(2)]
    assert plan(2, facts, platform="cuda").notes == (f"a: {used}",)
    assert plan(2, facts).notes == ()  # on CPU it does not matter


def test_rocm_takes_the_same_way_with_its_own_variable() -> None:
    facts = [fact(rank, gpus=["0", "1"]) for rank in range(2)]
    amd = plan(2, facts, platform="rocm", env={"A": "1"})
    assert [r.env for r in amd.requests] == [
        {"A": "1", "HIP_VISIBLE_DEVICES": "0"},
        {"A": "1", "HIP_VISIBLE_DEVICES": "1"},
    ]
    assert {r.platforms for r in amd.requests} == {"rocm"}
    with pytest.raises(PlanError) as caught:
        plan(4, [fact(rank, gpus=["0"]) for rank in range(4)], platform="rocm", env=SHARE)
    assert "NCCL" not in str(caught.value)
    assert choose_platform(["0"], 0, True, "rocm") == "rocm"


def test_explicit_local_device_ids_leave_the_choice_of_gpus_to_jax() -> None:
    made = gpu_plan(2, ["4", "5"], local_device_ids=[[1], [0]])
    assert visible_gpus(made) == [None, None]
    assert [request.local_device_ids for request in made.requests] == [[1], [0]]
    assert made.devices == ("GPU 5", "GPU 4")
    for bad in (5, -1):
        with pytest.raises(PlanError, match=f"rank 1 device {bad}, but it sees 2 GPUs on box"):
            gpu_plan(2, ["4", "5"], local_device_ids=[[0], [bad]])


# --------------------------------------------------------------------------- TPU


def test_one_process_per_tpu_host_needs_no_topology() -> None:
    facts = [fact(rank, f"t{rank}", tpu_chips=4, tpu_worker_id=rank) for rank in range(2)]
    made = plan(2, facts, platform="tpu")
    assert [request.env for request in made.requests] == [{}, {}]
    assert made.devices == ("TPU 0,1,2,3",) * 2


@pytest.mark.parametrize(("chips", "processes"), TPU_TOPOLOGY)
def test_tpu_topology_covers_every_chip_once(chips: int, processes: int) -> None:
    of_processes, of_chips = (
        math.prod(map(int, b.split(","))) for b in TPU_TOPOLOGY[chips, processes]
    )
    assert (of_processes, of_processes * of_chips) == (processes, chips)
    made = tpu_plan(processes, chips)
    seen = [c for r in made.requests for c in r.env["TPU_VISIBLE_CHIPS"].split(",")]
    assert seen == [str(chip) for chip in range(chips)]


def test_unsupported_tpu_layout_lists_the_supported_ones() -> None:
    with pytest.raises(PlanError) as caught:
        tpu_plan(3, 4)
    assert caught.value.message.startswith(
        "3 processes on 1 TPU host with 4 chips is not a layout that TPUs support. "
        "Supported: one process per host with all its chips, on any number of hosts; on a single "
        "host also 4 chips as 2 processes of 2; "
    )
    assert caught.value.hint == "Try: %jaxcluster start -n 1"


def test_a_host_without_tpu_says_what_to_type() -> None:
    with pytest.raises(PlanError, match="Rank 0 asked for a TPU, but box has no TPU") as caught:
        tpu_plan(2, 0)
    assert caught.value.hint == "Try: %jaxcluster start -n 2 --platform cpu"


# --------------------------------------------------------------------------- dry run


def test_dry_run_shows_a_cpu_plan_whole() -> None:
    made = plan(2, devices_per_process=2, env={"XLA_FLAGS": "--a --b"})
    assert describe_plan(made) == (
        "cluster 'main': 2 processes on 1 host, platform cpu, launcher local\n"
        "\n"
        "rank  host  devices  environment\n"
        "0     box   2 x cpu  NPROC=16 XLA_FLAGS='--a --b'\n"
        "1     box   2 x cpu  NPROC=16 XLA_FLAGS='--a --b'\n"
        "\n"
        "jax.distributed.initialize on every rank:\n"
        "  num_processes=2\n"
        "  coordinator_address=127.0.0.1:41234\n"
        "  coordinator_bind_address=127.0.0.1:41234\n"
        "  initialization_timeout=60\n"
        "  heartbeat_timeout_seconds=100"
    )


def test_dry_run_shows_what_differs_between_ranks_in_the_table() -> None:
    text = describe_plan(gpu_plan(3, ["0", "1", "2", "5"]))
    assert "0     box   GPU 0    CUDA_VISIBLE_DEVICES=0\n" in text
    assert text.endswith("note: no rank uses GPU 5 of box")
    chosen = describe_plan(gpu_plan(2, ["4", "5"], local_device_ids=[[1], [0]]))
    assert "local_device_ids=[[1], [0]][<rank>]" in chosen


@pytest.mark.parametrize("address", ["unix:/tmp/x.sock", "127.0.0.1:41234", "localhost:41234"])
@pytest.mark.parametrize("name", ["coordinator_address", "coordinator_bind_address"])
def test_a_coordinator_that_other_hosts_cannot_reach_is_refused(name: str, address: str) -> None:
    spec = ClusterSpec(name="main", num_processes=2, **{name: address})
    with pytest.raises(UsageError, match=r"the ranks on h2, h3 can't reach that"):
        check_spec(spec, ["h2", "h3"])
    check_spec(spec)  # one host alone
    check_spec(dataclasses.replace(spec, **{name: "10.0.0.1:41234"}), ["h2"])
