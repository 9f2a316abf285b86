"""One agent for each host, this machine too: it owns the processes and files there.

Here it is a child of the notebook's process. Elsewhere a launcher starts it, in its own way, with
``python -m jaxcluster.hosts.agent``, and reads the one line that it prints. From then on all
traffic of that host uses one authenticated connection: requests, events, each rank's messages,
files, logs.

``messages`` numbers and sends again (pure); ``transport`` makes the sockets and says who is let in;
``folder`` is an agent's folder on its host, and the fence; ``family`` has the processes there;
``server`` is the agent; ``client`` is the notebook's end of all of them. Nothing here imports jax
or IPython. So an agent starts in a quarter of a second, while its fork server still imports.
"""
