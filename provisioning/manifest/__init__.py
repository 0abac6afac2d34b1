"""The only reader of manifests/."""
