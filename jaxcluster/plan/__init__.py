"""What was asked for, and which rank gets what. Pure."""
