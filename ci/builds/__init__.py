"""CMake builds: targets as data (manifests/targets.toml), and one builder for all of them."""
