"""The part that a notebook loads: magics, completion, and hints at names that live elsewhere."""
