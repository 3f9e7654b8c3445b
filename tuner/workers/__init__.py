"""Processes that compile and run candidates and may crash without loss."""
