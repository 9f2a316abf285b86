"""Agents in the pods of a Kubernetes Job: ``--launcher kubernetes``.

``launcher`` has the options, ``manifests`` makes a Job of them, and ``pods`` starts it and follows
its pods with the official client, which is imported by a start alone.
"""
