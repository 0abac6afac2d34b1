"""Explain a log: find the cause, its fix and their source, by the rules in
manifests/policies/errors.toml."""
