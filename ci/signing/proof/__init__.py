"""The proof of a signed library from its bytes."""
