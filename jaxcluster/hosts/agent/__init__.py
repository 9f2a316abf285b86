"""One agent for each host, this machine too: it owns the processes and files there.

Here it is a child of the notebook's process. Elsewhere a launcher starts it, in its own way, with
``python -m jaxcluster.hosts.agent``, and reads the one line that it prints. From then on all
traffic of that host uses one authenticated connection: requests, events, each rank's messages,
files, logs.

``messages`` numbers messages and sends lost ones again (pure). ``transport`` makes the sockets and
decides who may connect. ``folder`` is an agent's folder on its host, and the fence. ``family`` has
the processes there. ``server`` is the agent, ``client`` the notebook's end of all. Nothing here
imports jax or IPython. So an agent starts in 0.25 s, while its fork server still imports.
"""
