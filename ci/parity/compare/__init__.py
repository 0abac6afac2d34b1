"""Facts and a policy in, findings out; nothing here reads or writes anything."""
