"""What a cell, a finding or an array is, and what is said of it. Pure: no sockets, no processes."""
