"""Large language models: decoders with static shapes run on the emulator and are judged by their
tokens and logits."""
