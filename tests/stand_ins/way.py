"""The modules of ci that a case is passed through, and what notes them in a run."""

WAY = {
    *("verbs/emulate.py", "verbs/options.py", "verbs/steps.py", "cases/policy.py"),
    *("models/user_models.py", "cases/spec.py", "cases/session.py", "cases/pipeline.py"),
    *("cases/pool.py", "cases/cache.py", "executorch/engine.py", "models/model.py"),
    *("cases/runners.py", "cases/judged.py", "mend/table.py", "report/schema.py"),
    *("report/columns.py", "report/bars.py"),
}
OTHER_DOCUMENTS = {"report/evidence.py", "report/junit.py", "report/overview.py"}
# Loaded by each Python process: notes the modules of ci with a function that gets a case, its
# options or its row.
TRACER = """
import os, sys, threading
FORMS = set("Namespace Options Setup ModelEntry Source CaseSpec CaseRun CompileJob CompileResult"
            " Artifact Program Evidence CaseResult Case".split())
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
