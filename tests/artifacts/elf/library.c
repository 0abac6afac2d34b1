/* answer() needs one versioned symbol; the string is what a build of QNN calls itself. */
extern int needed(void);
__attribute__((used)) static const char build[] = "v2.49.40.260810104044";
int answer(void) { return build[0] + needed(); }
