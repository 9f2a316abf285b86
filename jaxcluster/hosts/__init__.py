"""The hosts of a cluster: this machine, and others that agents reach. They outlive ranks."""
