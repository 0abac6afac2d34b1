# Names that ExecuTorch's build files use but its tree does not define: rules, which record their
# arguments; select(), which keeps its alternatives; and Meta's helpers, as far as they matter.
# Names that start with host_ are Python functions of the evaluator.

_KEPT = [
    "name",
    "src",
    "srcs",
    "headers",
    "public_headers",
    "exported_headers",
    "raw_headers",
    "header_namespace",
    "include_directories",
    "public_include_directories",
    "platform_srcs",
    "deps",
    "exported_deps",
    "fbcode_deps",
    "xplat_deps",
    "fbcode_exported_deps",
    "xplat_exported_deps",
    "external_deps",
    "exported_external_deps",
    "defines",
    "preprocessor_flags",
    "exported_preprocessor_flags",
    "propagated_pp_flags",
    "compiler_flags",
    "exported_compiler_flags",
    "cmd",
    "actual",
    "main_src",
    "main",
    "test_srcs",
    "resources",
    "autoglob_mode",
]

_MARK = "\0select"

def _plain(value):
    kind = type(value)
    if kind in ("string", "int", "bool", "NoneType", "float"):
        return value
    if kind in ("list", "tuple"):
        return [_plain(item) for item in value]
    if kind == "dict":
        return {str(key): _plain(item) for key, item in value.items()}
    return str(kind)

def rule(kind):
    def record(*args, **kwargs):
        kept = {key: _plain(kwargs[key]) for key in _KEPT if key in kwargs}
        if type(kept.get("name")) == "string":
            host_record(kind, json.encode(kept))
        return []

    return record

def select(alternatives):
    """Return a list or dict with one marked item, so that + with a list or dict works."""
    text = _MARK + json.encode(_plain(alternatives))
    for value in alternatives.values():
        if type(value) == "dict":
            return {text: ""}
        if type(value) == "string":
            return text
    return [text]

def _is_mark(item):
    return type(item) == "string" and item.startswith(_MARK)

def select_map(obj, function):
    """Call ``function`` on each alternative, and on the items outside of any select()."""
    if type(obj) != "list":
        return function(obj)
    result = []
    outside = [item for item in obj if not _is_mark(item)]
    if outside:
        result = result + (function(outside) or [])
    for item in obj:
        if _is_mark(item):
            table = json.decode(item[len(_MARK):])
            result = result + select({key: select_map(value, function) or [] for key, value in table.items()})
    return result

def apply_select(obj, function):
    return select_map(obj, function)

selects = struct(apply = apply_select)

def fbcode_target(_kind, *args, **kwargs):
    if host_variant() != "xplat":
        _kind(*args, **kwargs)

def non_fbcode_target(_kind, *args, **kwargs):
    if host_variant() == "xplat":
        _kind(*args, **kwargs)

def is_fbcode():
    return host_variant() == "fbcode"

def is_xplat():
    return host_variant() == "xplat"

def is_arvr_mode():
    return False

# The opposite value of a switch.
_SWITCHED = {"0": "1", "1": "0", "false": "true", "true": "false"}

def read_config(section, key, default = None):
    if host_variant() == "switched" and type(default) == "string":
        return _SWITCHED.get(default, default)
    return default

def read_root_config(section, key, default = None):
    return default

def package_name():
    return host_package()

def get_base_path():
    return host_package()

def repository_name():
    return "@"

def get_cell_name():
    return "root"

def glob(include, exclude = [], **kwargs):
    return host_glob(_plain(include), _plain(exclude))

def rule_exists(name):
    return host_exists(name)

def oncall(*args, **kwargs):
    pass

def package(*args, **kwargs):
    pass

def host_info():
    no = False
    return struct(
        os = struct(is_linux = True, is_macos = no, is_windows = no, is_unknown = no, is_freebsd = no),
        arch = struct(is_x86_64 = True, is_aarch64 = no, is_arm = no, is_unknown = no),
    )

def _external_dep_location(name):
    return "//third-party:" + name

def get_aten_mode_options():
    return (True, False)

def get_oss_build_kwargs():
    return {}

def get_default_executorch_platforms():
    return []

def get_executorch_supported_platforms():
    return []

def struct_to_json(value):
    return json.encode(value)

def _join(*parts):
    return "/".join([part.strip("/") if index else part.rstrip("/") for index, part in enumerate(parts) if part])

def _split(path):
    at = path.rfind("/")
    return ("", path) if at < 0 else (path[:at], path[at + 1:])

paths = struct(
    join = _join,
    basename = lambda path: _split(path)[1],
    dirname = lambda path: _split(path)[0],
    split_extension = lambda path: (path.rpartition(".")[0], "." + path.rpartition(".")[2]) if "." in _split(path)[1] else (path, ""),
    is_absolute = lambda path: path.startswith("/"),
    normalize = lambda path: path,
)

def _subdir_glob(specs, exclude = [], prefix = "", **kwargs):
    found = {}
    for folder, pattern in specs:
        for path in host_glob([_join(folder, pattern)], _plain(exclude or [])):
            key = path[len(folder):].lstrip("/") if folder else path
            found[_join(prefix, key) if prefix else key] = path
    return found

subdir_glob = _subdir_glob

_functions = {
    "glob": glob,
    "select": select,
    "select_map": select_map,
    "partial": partial,
    "json": json,
    "read_config": read_config,
    "read_root_config": read_root_config,
    "package_name": package_name,
    "get_base_path": get_base_path,
    "repository_name": repository_name,
    "get_cell_name": get_cell_name,
    "rule_exists": rule_exists,
    "host_info": host_info,
    "oncall": oncall,
    "package": package,
}

native = struct(**({name: rule(name) for name in RULE_NAMES if name not in _functions} | _functions))

runtime = struct(**({name: rule(name) for name in RULE_NAMES if name not in ("is_oss",)} | {
    "is_oss": host_variant() == "oss",
    "external_dep_location": _external_dep_location,
    "glob": glob,
}))

def namespace(names):
    return struct(**{name: rule(name) for name in names})
