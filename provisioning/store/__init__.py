"""The content-addressed store: published directories, locks and what differs from them."""
