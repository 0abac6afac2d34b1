"""Read the TOML files in manifests/ as structs, and check them."""
