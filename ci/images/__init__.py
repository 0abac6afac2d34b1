"""Docker images and the dev shell.

Two builds of an image have the same bytes. Vendor files are put into an image only on request, and
such an image is never pushed.
"""
