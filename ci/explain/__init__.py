"""Explain a log: cause, fix and source, by rules that are data (manifests/policies/errors.toml)."""
