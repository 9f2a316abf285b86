"""Loops that are kept while they run: ``jaxcluster.steps`` and ``jaxcluster.log`` on a rank."""
