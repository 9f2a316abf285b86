"""Clusters for an assistant in the user's editor, by the Model Context Protocol's own SDK."""
