"""The ranks' side: it imports the standard library, numpy, jax, IPython's kernel parts and
``jaxcluster.wire``. It imports no module of the notebook's side (law 2 of docs/architecture.md).
"""
