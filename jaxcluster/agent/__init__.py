"""One agent per host: it stands where the notebook stands on one machine.

    notebook kernel                        host
      client: one thread   <-- CURVE -->     server: owns the fork server, relays to ranks' sockets

A launcher starts ``python -m jaxcluster.agent`` on each host, whatever way it has to do so, and
reads the one line that it prints. From then on everything that goes to and from that host passes
one authenticated connection: the fork server's lines, each rank's messages, files, logs.

``messages`` numbers and sends again (pure); ``transport`` makes the sockets and says who is let in;
``folder`` is an agent's folder on its host, and the fence; ``server`` is the agent; ``client`` is
the notebook's end of all of them. Nothing here imports jax or IPython: an agent is there in a
quarter of a second, while its fork server still imports.
"""
