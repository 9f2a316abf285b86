"""A rank: one process of the cluster, and what it does for the notebook."""
