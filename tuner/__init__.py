"""Tunes IREE programs."""
