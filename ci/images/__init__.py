"""Docker images and the dev shell: reproducible, with no vendor's files in any layer."""
