"""What one machine can say of its processes and devices (standard library only)."""
