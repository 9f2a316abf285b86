"""Agents in a job of Slurm's: ``--launcher slurm``.

``launcher`` makes a plan of what was typed, and asks Slurm's commands; what they say of a job is
read in ``jobs``.
"""
