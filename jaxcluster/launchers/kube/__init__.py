"""Agents in the pods of a Kubernetes Job: ``--launcher kubernetes``.

``launcher`` makes a plan of what was typed: manifests (``manifests``, ``template``) and one
command, ``process``, which alone talks to the API server (``api``, ``forward``), in a process of
its own: the notebook's never imports the client. What the API server says is put into words in
``reasons``.
"""
