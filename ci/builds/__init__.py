"""CMake builds: targets as data (manifests/targets.toml), and one builder that runs them."""
