"""Devices: what one needs, how it gets there, and programs run on it."""
