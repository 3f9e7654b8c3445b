"""Learns and ranks: knows shapes, tiles and times, and imports no IREE."""
