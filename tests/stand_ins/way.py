"""The files of ci that a case is passed through, and what notes them in a run."""

WAY = (
    *("verbs/emulate.py", "verbs/lanes/lane.py", "verbs/lanes/emulator.py"),
    *("cases/session.py", "cases/pipeline.py", "cases/cache.py", "executorch/engine.py"),
    *("cases/runners.py", "cases/judged.py", "report/columns.py"),
)
# Loaded by each Python process: notes the modules of ci with a function that gets a case, its
# options or its row.
TRACER = """
import os, sys, threading
FORMS = set("Namespace Request EmulatorRequest Options Setup ModelEntry Source CaseSpec CaseRun"
            " CompileJob CompileResult Artifact Program Evidence CaseResult Case".split())
seen = set()
def note(frame, event, _):
    name, code = str(frame.f_globals.get("__name__")), frame.f_code
    if event != "call" or not name.startswith("ci.") or name in seen or code.co_name[0] in "<_":
        return
    for word in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        value = frame.f_locals.get(word)
        value = value[0] if type(value) in (list, tuple) and value else value
        if type(value).__name__ in FORMS:
            seen.add(name)
            with open(os.environ["WAY"], "a") as file:
                file.write(name.partition(".")[2].replace(".", "/") + ".py\\n")
            return
sys.setprofile(note)
threading.setprofile(note)
"""
