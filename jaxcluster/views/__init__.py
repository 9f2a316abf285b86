"""How the cluster's models are shown: text, and what a notebook renders. No logic of its own."""
