int needed(void) { return 41; }
