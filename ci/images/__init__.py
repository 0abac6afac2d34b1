"""Docker images and the dev shell: reproducible, and without a vendor's file in a layer."""
