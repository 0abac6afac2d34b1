"""Devices: the files that a device needs, how they get there, and running programs on it."""
