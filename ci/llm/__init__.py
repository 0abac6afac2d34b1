"""Runs large language models on the emulator, as decoders with static shapes, and judges their
tokens and logits."""
