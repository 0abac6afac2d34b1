"""Decide whether an environment is fit: gather facts, run checks on them, give a verdict."""
