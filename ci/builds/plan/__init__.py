"""From a target to commands: what will be built, where, and with which tools."""
