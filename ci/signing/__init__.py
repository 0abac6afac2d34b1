"""Signing of Hexagon libraries: the signer, the proof from the bytes, the record."""
