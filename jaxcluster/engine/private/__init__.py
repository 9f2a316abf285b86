"""Every private name of JAX that jaxcluster uses, each with what to do where it has moved.

``self_test`` names those that are missing and what that costs.
"""
