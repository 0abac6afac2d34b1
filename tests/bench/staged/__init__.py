"""The main job with a clock on its stages."""
