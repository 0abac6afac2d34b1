"""Digests that make a program, and the key under which it is kept, functions of what goes in."""
