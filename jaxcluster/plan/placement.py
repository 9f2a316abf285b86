"""Which devices each rank gets, and with which environment and arguments it initializes.

This module computes all from the user's options (``ClusterSpec``, checked in ``spec``) and the
engines' facts (``EngineFacts``). It uses no files, no environment, no sockets. That is why
``--dry-run`` can print a plan without starting a process.

    ClusterSpec + EngineFacts of every rank  ->  plan_ranks  ->  RankPlan  ->  describe_plan
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from jaxcluster.errors import PlanError
from jaxcluster.plan.spec import ALL, GPU_PLATFORMS, UNIX, is_loopback
from jaxcluster.ranks import name_ranks
from jaxcluster.text import format_table, plural, shown_value
from jaxcluster.wire import ClusterSpec, EngineFacts, InitializeRequest

# XLA's CPU client sizes its thread pool by NPROC, else by the number of cores. On few cores a
# correct program of many collectives in a row then deadlocks. With jax 0.10 on 2 cores, 4 processes
# with 2 devices each hung for NPROC < 4, and not for 4..128. Removable when jax >= 0.12 is the
# oldest version supported: there it does not hang. A host with as many cores needs none of it.
CPU_NPROC = 16

# (chips on the host, processes on the host) -> (TPU_PROCESS_BOUNDS, TPU_CHIPS_PER_PROCESS_BOUNDS).
# The values of jax/_src/test_multiprocess.py, by which JAX tests itself on TPUs. They follow the
# wiring of each kind of host and can't be computed: hence the table. (8, 2) is v6e's 2x4 host.
TPU_TOPOLOGY: Mapping[tuple[int, int], tuple[str, str]] = {
    (4, 2): ("2,1,1", "1,2,1"),
    (4, 4): ("2,2,1", "1,1,1"),
    (8, 2): ("1,2,1", "2,2,1"),
    (8, 8): ("4,2,1", "1,1,1"),
}

# libtpu's processes of one host connect at this port plus the local index, as in
# test_multiprocess.py. Fixed ports are enough, since one host's chips serve one cluster at a time.
TPU_FIRST_PORT = 10000

# Variables that give a process its GPUs. HIP counts in the rest that ROCR_VISIBLE_DEVICES leaves.
MEM_FRACTION = {"XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"}
VISIBLE: Mapping[str, str] = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}
SHARE_GPU = "NCCL_MULTI_RANK_GPU_ENABLE"
# A dry run shows these; they are the same on all ranks.
ARGUMENTS = (
    "num_processes",
    "coordinator_address",
    "coordinator_bind_address",
    "initialization_timeout",
    "heartbeat_timeout_seconds",
)


@dataclass(frozen=True)
class RankPlan:
    """The settings of every rank before it initializes JAX; all tuples are indexed by rank.

    ``hosts`` are host names and ``devices`` says what a rank gets (``"GPU 2,3"``), both
    for people. ``notes`` are remarks on the whole plan, such as GPUs that no rank uses.
    """

    spec: ClusterSpec
    requests: tuple[InitializeRequest, ...]
    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    notes: tuple[str, ...] = ()


# One rank's devices by name, and the environment that gives it these and no others.
_Share = tuple[str, dict[str, str]]


def default_num_processes(
    platform: str,
    gpus: Sequence[str],
    tpu_chips: int,
    devices_per_process: int | None = None,
    num_hosts: int = 1,
) -> int:
    """How many processes a host gets without ``-n``: one per GPU or TPU chip, else 2.

    With ``devices_per_process`` as many as get so many, and one where it is ``ALL``. A TPU host
    that can't be split into one process per chip (see ``TPU_TOPOLOGY``) gets one process. Each of
    several hosts gets one on CPU, and on TPU, since libtpu splits no host then.
    """
    if num_hosts > 1 and platform not in GPU_PLATFORMS:
        return 1
    if platform != "cpu" and devices_per_process == ALL:
        return 1
    if platform in GPU_PLATFORMS and gpus:
        return max(1, len(gpus) // (devices_per_process or 1))
    if platform == "tpu" and tpu_chips:
        return tpu_chips if (tpu_chips, tpu_chips) in TPU_TOPOLOGY else 1
    return 2


def choose_platform(gpus: Sequence[str], chips: int, has_plugin: bool, gpu_platform: str) -> str:
    """The best platform that is usable here.

    GPUs count only where JAX's plugin for them is installed: without it JAX can't use them.
    """
    if chips:
        return "tpu"
    return gpu_platform if gpus and has_plugin else "cpu"


def plan_ranks(
    spec: ClusterSpec,
    facts: Sequence[EngineFacts],
    *,
    coordinator: str,
    collectives_addresses: Sequence[str],
) -> RankPlan:
    """Every rank's devices, environment and arguments of ``jax.distributed.initialize``.

    The user's values in ``spec`` win over those assigned here. The engines are expected to have
    gathered their facts with ``spec.env`` applied, so a CUDA_VISIBLE_DEVICES given there counts.

    Args:
      spec: what the user asked for; ``check_spec`` has nothing against it.
      facts: of each rank, in their order.
      coordinator: where the coordination service listens, if the user has not said where.
      collectives_addresses: each rank's own address, by rank, for gloo to listen on (CPU only).

    Raises:
      PlanError: the ranks can't be laid out on the devices that the facts name.
    """
    notes: list[str] = []
    if spec.platform in GPU_PLATFORMS:
        shares = _gpu_shares(spec, facts, notes)
        notes += dict.fromkeys(f"{f.hostname}: {said}" for f in facts for said in f.gpus_in_use)
    elif spec.platform == "tpu":
        shares = _tpu_shares(spec, facts)
    else:
        few = {"NPROC": str(CPU_NPROC)}
        own = [(few if fact.cores < CPU_NPROC else {}) | spec.env for fact in facts]
        shares = [(f"{spec.devices_per_process or 1} x cpu", env) for env in own]
    on_cpu = spec.platform == "cpu"
    address, bind_address = _coordinator(spec, coordinator)
    requests = tuple(
        InitializeRequest(
            process_id=rank,
            num_processes=spec.num_processes,
            coordinator_address=address,
            coordinator_bind_address=bind_address,
            local_device_ids=spec.local_device_ids[rank] if spec.local_device_ids else None,
            initialization_timeout=spec.initialization_timeout or max(1, int(spec.timeout_s)),
            heartbeat_timeout_seconds=spec.heartbeat_timeout_seconds,
            platforms=spec.platform,
            num_cpu_devices=(spec.devices_per_process or 1) if on_cpu else None,
            collectives_address=collectives_addresses[rank] if on_cpu else None,
            env=env,
        )
        for rank, (_, env) in enumerate(shares)
    )
    return RankPlan(
        spec=spec,
        requests=requests,
        hosts=tuple(fact.hostname for fact in facts),
        devices=tuple(devices for devices, _ in shares),
        notes=tuple(notes),
    )


def describe_plan(plan: RankPlan) -> str:
    """The plan as plain text for ``--dry-run``: a table of the ranks, then what they share."""
    spec, first = plan.spec, plan.requests[0]
    rows = [("rank", "host", "devices", "environment")]
    for request, host, devices in zip(plan.requests, plan.hosts, plan.devices, strict=True):
        env = (f"{name}={shlex.quote(shown_value(name, v))}" for name, v in request.env.items())
        rows.append((str(request.process_id), host, devices, " ".join(env)))
    arguments = {name: getattr(first, name) for name in ARGUMENTS}
    if spec.local_device_ids is not None:
        arguments["local_device_ids"] = f"{spec.local_device_ids}[<rank>]"
    return "\n".join(
        [
            f"cluster {spec.name!r}: {plural(spec.num_processes, 'process', 'processes')} on "
            f"{plural(len(set(plan.hosts)), 'host')}, platform {spec.platform}, launcher "
            f"{spec.launcher}",
            "",
            *format_table(rows),
            "",
            "jax.distributed.initialize on every rank:",
            *(f"  {name}={value}" for name, value in arguments.items() if value is not None),
            *(f"note: {note}" for note in plan.notes),
        ]
    )


def _coordinator(spec: ClusterSpec, address: str) -> tuple[str, str | None]:
    """The coordinator's address for ranks, and the one it listens on, or the user's own."""
    if spec.coordinator_address is not None:
        # The assigned bind address has another port, so it can't serve a given address. JAX's own
        # default listens on all interfaces with no authentication: stay on loopback where we can.
        own = spec.coordinator_address if is_loopback(spec.coordinator_address) else None
        return spec.coordinator_address, spec.coordinator_bind_address or own
    bind = spec.coordinator_bind_address
    if bind is not None and not bind.startswith(UNIX):
        return f"{address.rpartition(':')[0]}:{bind.rpartition(':')[2]}", bind
    address = bind or address
    return address, address


# --------------------------------------------------------------------------- devices


def _gpu_shares(spec: ClusterSpec, facts: Sequence[EngineFacts], notes: list[str]) -> list[_Share]:
    """Each rank's slice of the GPUs that it may see. ``notes`` gets one on each that nobody uses.

    If NCCL's setting allows it, several ranks share one card, each with a part of its memory.
    """
    if spec.local_device_ids is not None:
        return [_chosen_gpus(spec, *one) for one in zip(facts, spec.local_device_ids, strict=True)]
    # Usually the ranks of a host share its GPUs. A scheduler may have given each process its own
    # GPUs, as Slurm's ``--gpus-per-task`` does: those must not be divided again.
    pools: dict[tuple[str, ...], list[EngineFacts]] = {}
    for fact in facts:
        pools.setdefault((fact.host_key, *fact.gpus), []).append(fact)
    may_share = spec.platform == "cuda" and spec.env.get(SHARE_GPU) == "1"
    may_share = may_share and spec.devices_per_process in (None, 1)
    # As many for each rank: all of them where they divide evenly, else one.
    even = [divmod(len(ranks[0].gpus), len(ranks)) for ranks in pools.values()]
    fair = max(1, min(1 if rest else each for each, rest in even))
    per_rank = 1 if may_share else spec.devices_per_process or fair
    shares: dict[int, _Share] = {}
    for ranks in pools.values():
        gpus, name = ranks[0].gpus, ranks[0].hostname
        most = -(-len(ranks) // len(gpus)) if may_share and gpus else 1  # ranks on a card
        if per_rank * len(ranks) > most * len(gpus):
            raise _too_few_gpus(spec, pools.values(), per_rank)
        for index, fact in enumerate(ranks):
            at = index // most * per_rank
            own = ",".join(gpus[at : at + per_rank])
            env = {**spec.env, VISIBLE[spec.platform]: own}
            # JAX takes 75 % for one process; the rest is CUDA's own, for each of them. The
            # variable has two names, and jaxlib refuses a process that has both.
            if most > 1 and not MEM_FRACTION & env.keys():
                env["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.75 / most:.3f}"
            shares[fact.rank] = f"GPU {own}" + (f" (1/{most})" if most > 1 else ""), env
        if unused := gpus[-(-len(ranks) // most) * per_rank :]:
            notes.append(f"no rank uses GPU {','.join(unused)} of {name}")
    return [shares[rank] for rank in range(len(facts))]


def _chosen_gpus(spec: ClusterSpec, fact: EngineFacts, ids: Sequence[int]) -> _Share:
    """A rank whose GPUs JAX itself selects: ``local_device_ids`` counts in what it may see."""
    if bad := [i for i in ids if not 0 <= i < len(fact.gpus)]:
        raise PlanError(
            f"local_device_ids gives rank {fact.rank} device {bad[0]}, but it sees "
            f"{plural(len(fact.gpus), 'GPU')} on {fact.hostname}.",
            "A rank's ids count from 0 in what it sees. %jaxcluster doctor shows the GPUs.",
        )
    return f"GPU {','.join(fact.gpus[i] for i in ids)}", dict(spec.env)


def _too_few_gpus(
    spec: ClusterSpec, pools: Collection[Sequence[EngineFacts]], per_rank: int
) -> PlanError:
    n, hosts = spec.num_processes, len({ranks[0].host_key for ranks in pools})
    wanted = f"{plural(n, 'process', 'processes')} on {plural(hosts, 'host')}"
    on_cpu = f"%jaxcluster start -n {n} --platform cpu"
    if not any(ranks[0].gpus for ranks in pools):
        told = f"{wanted} asked for GPUs, but no GPU is visible there."
        return PlanError(told, f"Try: {on_cpu}   %jaxcluster doctor shows the GPUs.")
    have = ", ".join(
        f"{ranks[0].hostname} has {plural(len(ranks[0].gpus), 'GPU')} "
        f"({','.join(ranks[0].gpus) or 'none visible'}) for {name_ranks([f.rank for f in ranks])}"
        for ranks in pools
        if per_rank * len(ranks) > len(ranks[0].gpus)
    )
    fits = sum(min(len(ranks), len(ranks[0].gpus) // per_rank) for ranks in pools)
    each = f" --devices-per-process {per_rank}" if fits and per_rank > 1 else ""
    # NCCL before 2.30 ends with "Duplicate GPU detected" where a GPU serves two ranks.
    sharing = (
        "\nFrom NCCL 2.30 on, ranks can share a GPU, each with a part of its memory: --env "
        f"{SHARE_GPU}=1"
    )
    return PlanError(
        f"{wanted}{f' with {per_rank} GPUs each' if per_rank > 1 else ''} need "
        f"{plural(n * per_rank, 'GPU')}, and a GPU can't be shared: {have}.",
        f"Try: %jaxcluster start -n {fits or 1}{each}   or   {on_cpu}"
        f"{sharing if per_rank == 1 and spec.platform == 'cuda' else ''}",
    )


def _tpu_shares(spec: ClusterSpec, facts: Sequence[EngineFacts]) -> list[_Share]:
    """One process per host as it comes, or one host split as ``TPU_TOPOLOGY`` says."""
    by_host = Counter(fact.host_key for fact in facts)
    processes = max(by_host.values())
    for fact in facts:
        chips, per_rank = fact.tpu_chips, fact.tpu_chips // processes
        split = processes == 1 or (len(by_host) == 1 and (chips, processes) in TPU_TOPOLOGY)
        if not (chips and split and spec.devices_per_process in (None, ALL, per_rank)):
            raise _unsupported_tpu_split(spec, facts, len(by_host))
    if processes == 1:
        _check_slice(spec, facts)
        return [(f"TPU {','.join(map(str, range(f.tpu_chips)))}", dict(spec.env)) for f in facts]
    process_bounds, chips_per_process_bounds = TPU_TOPOLOGY[chips, processes]
    ports = [TPU_FIRST_PORT + rank for rank in range(processes)]
    shares = list[_Share]()
    for rank, port in enumerate(ports):
        own = ",".join(map(str, range(rank * per_rank, (rank + 1) * per_rank)))
        env = {
            **spec.env,
            "CLOUD_TPU_TASK_ID": str(rank),
            "TPU_PROCESS_BOUNDS": process_bounds,
            "TPU_CHIPS_PER_PROCESS_BOUNDS": chips_per_process_bounds,
            "TPU_PROCESS_ADDRESSES": ",".join(f"localhost:{p}" for p in ports),
            "TPU_PROCESS_PORT": str(port),
            "TPU_VISIBLE_CHIPS": own,
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }
        shares.append((f"TPU {own}", env))
    return shares


def _unsupported_tpu_split(
    spec: ClusterSpec, facts: Sequence[EngineFacts], hosts: int
) -> PlanError:
    if bare := [fact for fact in facts if not fact.tpu_chips]:
        return PlanError(
            f"Rank {bare[0].rank} asked for a TPU, but {bare[0].hostname} has no TPU chips.",
            f"Try: %jaxcluster start -n {spec.num_processes} --platform cpu",
        )
    chips = sorted({fact.tpu_chips for fact in facts})
    each = f", {plural(spec.devices_per_process, 'chip')} each" if spec.devices_per_process else ""
    table = "; ".join(
        f"{chips} chips as {processes} processes of {chips // processes}"
        for chips, processes in TPU_TOPOLOGY
    )
    return PlanError(
        f"{plural(spec.num_processes, 'process', 'processes')}{each} on "
        f"{plural(hosts, 'TPU host')} with {' or '.join(map(str, chips))} chips is not a layout "
        "that TPUs support. Supported: one process per host with all its chips, on any number of "
        f"hosts; on a single host also {table}.",
        f"Try: %jaxcluster start -n {hosts}",
    )


def _check_slice(spec: ClusterSpec, facts: Sequence[EngineFacts]) -> None:
    """Refuse hosts that are not one whole TPU slice in the order of its workers, if that is known.

    With a process on each host, libtpu numbers processes by the hosts' worker numbers. It waits for
    all hosts of the slice. Users who bound the processes themselves know better.
    """
    there = {(*fact.tpu_hosts, fact.tpu_worker_id): fact.hostname for fact in facts}
    slices = sorted({tuple(fact.tpu_hosts) for fact in facts if fact.tpu_hosts})
    numbers = [fact.tpu_worker_id for fact in facts]
    if not slices or None in numbers or "TPU_PROCESS_BOUNDS" in spec.env:
        return
    if len(slices) > 1 or numbers != [*range(len(slices[0]))]:
        workers = ", ".join(f"{fact.hostname} (worker {fact.tpu_worker_id})" for fact in facts[:8])
        order = [there.get((*slices[0], n), host) for n, host in enumerate(slices[0])]
        raise PlanError(
            f"The ranks run on {workers}. They are not one whole TPU slice, in order: libtpu "
            "waits for all hosts of a slice, and JAX numbers processes by worker, not by rank.",
            f"List its hosts in the order of their numbers: --hosts {','.join(order)}   or start "
            "on it: --launcher tpu, with --tpu NAME unless this machine is one of its hosts.",
        )
