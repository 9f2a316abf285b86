"""Hosts that a cluster runs on: this machine, or others behind their agents. They outlive ranks."""
