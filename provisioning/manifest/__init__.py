"""Read manifests/. No other package reads it."""
