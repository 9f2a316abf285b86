"""``--launcher tpu`` on hosts without a TPU: gcloud is a script, and the devices are CPUs.

What is shown is our flow: from a slice's name to ranks on its hosts in its order, where the hosts'
metadata, as JAX's own detection reads it, says the same. It shows nothing of libtpu.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rig import Host, HostNotebook, Rig

pytestmark = pytest.mark.any_jax

# What version 528 of the Google Cloud CLI prints, for hosts of the rig; it asks no cloud.
GCLOUD = """#!/bin/sh
case "$*" in
*" ssh pod "*--dry-run*) {lines} ;;
*) echo "ERROR: (gcloud.compute.tpus) NOT_FOUND: Resource 'nodes/other' was not found." >&2
   exit 1 ;;
esac
"""
# A virtual machine's metadata server, with what the slice's worker N is told.
METADATA = """
import http.server, sys
number, addresses = sys.argv[1:]
ends = ",".join(f"w{i}:{i}:{a}" for i, a in enumerate(addresses.split(",")))
attributes = {"agent-worker-number": number, "worker-network-endpoints": ends, "tpu-env": "A: 'b'"}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = attributes.get(self.path.rpartition("/")[2])
        self.send_response(200 if text is not None else 404)
        self.end_headers()
        self.wfile.write((text or "").encode())
    def log_message(self, *words):
        pass
http.server.HTTPServer(("127.0.0.1", 8001), Handler).serve_forever()
"""
DETECTED = """%%spmd --all
import importlib, jax, os, socket, sys
os.environ.pop("TPU_SKIP_MDS_QUERY", None)  # set by jax: there is no TPU on this machine's bus
from jax._src.clusters import cloud_tpu_cluster as detection
detection.running_in_cloud_tpu_vm = True
kind = detection.GceTpuCluster
print(socket.gethostname(), jax.process_index(), kind.is_env_present(), kind.get_process_id(),
      kind.get_process_count())
"""
ENV = "--env GCE_METADATA_IP=127.0.0.1:8001 --env NO_PROXY=127.0.0.1"


@pytest.fixture
def slice_of_two(ssh: Rig) -> Iterator[Rig]:
    """h1 and h2 as workers 0 and 1 of the slice "pod", and a gcloud on h0 that knows it."""
    workers: list[Host] = [ssh["h1"], ssh["h2"]]
    lines = "; ".join(f"echo /usr/bin/ssh -T root@{worker.address} -- true" for worker in workers)
    ssh["h0"].write("~/bin/gcloud", GCLOUD.format(lines=lines), 0o755)
    addresses = ",".join(worker.address for worker in workers)
    for number, worker in enumerate(workers):
        command = (ssh.python, "-c", METADATA, str(number), addresses)
        worker.start_daemon("metadata", *command)
    yield ssh
    for worker in workers:
        worker.stop_daemon("metadata")
    ssh["h0"].path("~/bin/gcloud").unlink()
    ssh["h0"].path("~/bin").rmdir()


def test_a_named_slice_s_hosts_are_ranks_in_the_order_of_its_workers(slice_of_two: Rig) -> None:
    path = f"{slice_of_two.home}/bin:/usr/local/bin:/usr/bin:/bin"
    notebook = HostNotebook(slice_of_two["h0"], env={"PATH": path})
    try:
        notebook.ok("%load_ext jaxcluster")
        told = notebook.run("%jaxcluster start --launcher tpu --tpu other --zone z").text
        assert "NOT_FOUND: Resource 'nodes/other' was not found." in told
        start = f"%jaxcluster start --launcher tpu --tpu pod --zone z --timeout 90 {ENV}"
        # The hosts have no chips: that is seen before JAX would begin on CPU.
        told = notebook.run(start, 100).text
        assert "Rank 0 asked for a TPU, but pod-w0 has no TPU chips." in told
        notebook.ok(f"{start} --platform cpu", 100)
        said = notebook.ok(DETECTED).text
        assert "h1 0 True 0 2" in said and "h2 1 True 1 2" in said
        # New processes need no gcloud.
        slice_of_two["h0"].path("~/bin/gcloud").chmod(0o644)
        notebook.ok("%jaxcluster restart")
        assert "h2 1 True 1 2" in notebook.ok(DETECTED).text
        # All messages call a host as its launcher does.
        lines = "import os\nif jax.process_index() == 1: os.kill(os.getpid(), 9)"
        assert "killed by SIGKILL on host pod-w1" in notebook.run(f"%%spmd\n{lines}").text
        notebook.ok("%jaxcluster stop")
    finally:
        notebook.close()
