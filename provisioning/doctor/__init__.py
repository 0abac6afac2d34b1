"""Decide whether an environment is fit: facts, checks, verdict."""
