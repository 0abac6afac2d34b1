"""Measurements, each beside a peer: ``nox -s bench -- provisioning``."""
