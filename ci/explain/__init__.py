"""Explain a log: find the cause, its fix and their source with the rules in
manifests/policies/errors.toml."""
