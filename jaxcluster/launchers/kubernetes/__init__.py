"""Agents in the pods of a Kubernetes Job: ``--launcher kubernetes``."""
