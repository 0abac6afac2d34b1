"""Docker images and the dev shell. Images are reproducible, and no layer contains a vendor's
files."""
