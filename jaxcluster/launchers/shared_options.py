"""Options that several launchers know. An option is the same for each of them."""

from __future__ import annotations

from jaxcluster.options.table import VISIBLE, Field, Option
from jaxcluster.options.value_types import COUNT, HOSTS, SWITCH, TEXT

NAMED_HOSTS = Option("--hosts", HOSTS, "H:N,...", "hosts and their ranks: h1:2,user@h2:2",
    "h1:2,user@h2:2",
    field=Field("Hosts", "With the number of ranks on each", "h1:2,user@h2:2", ("ssh", "mpi")),
)  # fmt: skip
HOSTFILE = Option("--hostfile", TEXT, "FILE", "the same, one per line: h1 slots=2", "~/hosts")
DIRECT = Option("--direct", SWITCH, "", "reach the agents by TCP, not by a tunnel")
NODES = Option("--nodes", COUNT, "N", "how many nodes", "2 --ntasks-per-node 4",
    field=Field("Nodes", "How many", "1"))  # fmt: skip
NTASKS_PER_NODE = Option("--ntasks-per-node", COUNT, "N", "ranks on each node", "4",
    field=Field("On each node", "How many ranks"))  # fmt: skip
TIME = Option("--time", TEXT, "TIME", "the job's limit: 2:00:00 is two hours", "2:00:00",
    field=Field("Job's time", "At most: 2:00:00 is two hours", launchers=("slurm",)))  # fmt: skip
MEM = Option("--mem", TEXT, "SIZE", "memory of a node: 64G; of a pod: 64Gi", "64G",
    field=Field("Memory", "Of each pod", "64Gi", ("kubernetes",)), pattern=VISIBLE)  # fmt: skip
