"""Clusters for an assistant in the user's editor: ``jaxcluster mcp``, over standard input.

``server`` has the tools, by the Model Context Protocol's own SDK, which is an optional dependency.
"""
