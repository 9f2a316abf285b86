"""What a notebook loads: the magics, completion, and hints at names that live elsewhere."""
