"""What is refused of a user's model, data, metric and choices, word by word."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")

from ci.facts.finding import Place, describe_error  # noqa: E402
from ci.models import factory, user_code, user_data  # noqa: E402
from ci.models.lowering_options import EXCLUSIONS, Choices, Part, check_choices  # noqa: E402
from ci.models.schemes import Scheme  # noqa: E402
from ci.models.user_models import (  # noqa: E402  # noqa: E402
    Metric,
    ModelEntry,
    check_data,
    count_sets,
    is_function,
    read_arrays,
)
from provisioning.errors import FailedError, QnnCiError, UsageError  # noqa: E402
from tests.stand_ins.snapshots import check_snapshot  # noqa: E402

SNAPSHOT = Path(__file__).with_name("snapshots") / "messages.txt"
A8W8, LINEAR = Scheme.A8W8, torch.nn.Linear(2, 2)
ROW = torch.ones(1, 2)


class OddNames(torch.nn.Module):
    def forward(this, self: torch.Tensor) -> torch.Tensor:  # noqa: N805
        """torch.export refuses the name."""
        return self * 2


SOURCE = """
import numpy as np
number = 5
def none(): return None
def many(): return [np.ones(3)] * 5
def labels(): return [1, 2, 3, 4]
def words(): return ["a"]
def fails(*given): raise ValueError("no\\nsuch thing")
def leaves(*given): raise SystemExit(3)
def interrupts(): raise KeyboardInterrupt
class Leaving(Exception):
    def __str__(self): raise SystemExit
def hides(): raise Leaving
def lazy():
    yield 1
    raise TypeError("inside")
def looks(): open("gone.txt")
def needs(): import no_such_package
def reads(): raise ModuleNotFoundError("No module named 'cv2.aruco'", name="cv2.aruco")
def imports():
    try: import no_such_package
    except ImportError as error: raise ModuleNotFoundError("Could not import 'Net'") from error
def relative(): from . import other
def absent(): from builtins import no_such_name
class Odd:
    def __float__(self): raise ZeroDivisionError
def odd(outputs, labels): return Odd()
def score(outputs, labels): return (outputs[0][:, 0] == labels).double().mean()
def vector(outputs, labels): return outputs[0]
def text(outputs, labels): return "good"
def nothing(outputs, labels): return float("nan")
def lonely(outputs): return 1
def crowded(outputs, labels, weights): return 1
class Net:
    def __init__(self, width): self.width = width
    def forward(self, x): return x
    def __call__(self, *given): return self.forward(*given)
net = Net(4)
def writes(outputs, labels): return outputs[0].zero_().sum() + labels.add_(1).sum()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a user's code and data, in which the command was typed."""
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own.py").write_text(SOURCE, "utf-8")
    (tmp_path / "broken.py").write_text("def (\n", "utf-8")
    arrays: dict[str, Any] = {
        "three": np.ones((3, 2)),
        "four": np.ones((4, 2)),
        "five": np.ones((5, 2)),
        "scalar": np.ones(()),
        "empty": np.ones((4, 0)),
        "none": np.ones((0, 4)),
        "words": np.array(["a"] * 4),
        "long": np.ones(4, np.longdouble),
        "nan": np.array([1, np.nan, 1, 1]),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "uneven.npz", a=np.ones(4), b=np.ones(5))
    np.savez(tmp_path / "named.npz", b=np.full((4, 1), 2.0), a=np.full((4, 1), 1.0))
    np.savez(tmp_path / "nothing.npz")
    (tmp_path / "text.npy").write_bytes(b"hello")
    (tmp_path / "zip.npz").write_bytes(b"PK\x03\x04")
    yield tmp_path
    for name in ("model_own", "model_broken", "model_in_c", "model_second"):
        sys.modules.pop(name, None)


def list_refusals(place: Path) -> dict[str, Callable[[], object]]:
    def of(name: str) -> str:
        return f"{place}/own.py:{name}"

    def check(**keys: Any) -> Callable[[], object]:
        metric = keys.pop("metric", None)
        return lambda: check_data("m", ModelEntry("net.py:f", metric=metric, **keys))

    def measure(name: str) -> Callable[[], object]:
        return lambda: user_data.run_metric(*make_job(of(name), of("labels")))

    def unpack(returned: Any) -> Callable[[], object]:
        return lambda: factory.unpack("/a/net.py:f", returned)

    def call(name: str) -> Callable[[], object]:
        return lambda: user_code.call_function(of(name))

    files = ("scalar", "empty", "none", "words", "long", "nan", "text", "gone")
    calls: dict[str, Callable[[], object]] = {
        **{f"{name}.npy": check(inputs=f"{place}/{name}.npy") for name in files},
        **{
            f"{name}.npz": check(calibration=f"{place}/{name}.npz")
            for name in ("uneven", "nothing", "zip")
        },
        "three sets": check(inputs=f"{place}/three.npy"),
        "labels": check(
            inputs=f"{place}/four.npy",
            metric=Metric(of("score"), f"{place}/five.npy", max_drop=0.1),
        ),
        "an array": lambda: read_arrays(place / "text.npy"),
        "no sets": lambda: count_sets([np.ones(())], "it"),
        "a function of no sets": lambda: user_data.read_sets(of("none")),
        "few sets": lambda: user_data.read_judged(f"{place}/three.npy"),
        "names": lambda: user_data.read_sets(f"{place}/named.npz", ("a", "c")),
        "labels of two arrays": lambda: user_data.read_labels(f"{place}/named.npz", 4),
        "labels of words": lambda: user_data.read_labels(of("words"), 1),
        "labels of another shape": lambda: user_data.read_labels(f"{place}/five.npy", 4),
        "labels of no shape": lambda: user_data.read_labels(f"{place}/scalar.npy", 1),
        "a metric's labels": lambda: user_data.check_metric(
            Metric(of("score"), f"{place}/five.npy", max_drop=0.1), 4
        ),
        "a metric's arguments": lambda: user_data.check_metric(
            Metric(of("lonely"), f"{place}/four.npy", max_drop=0.1), 4
        ),
        "a metric of three": lambda: user_data.check_metric(
            Metric(of("crowded"), f"{place}/four.npy", max_drop=0.1), 4
        ),
        **{name: measure(name) for name in ("vector", "text", "nothing", "odd", "fails", "leaves")},
        **{
            f"call {name}": call(name)
            for name in (
                *("fails", "interrupts", "hides", "looks", "needs", "reads", "relative", "absent"),
                *("imports", "scores"),
                *("number", "crowded", "Net", "net"),
            )
        },
        "a broken file": lambda: user_code.call_function(f"{place}/broken.py:f"),
        "of the suite": lambda: user_code.call_function("mlp:gone"),
    }
    sparse = torch.eye(2).to_sparse()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is a prototype
        strided = torch.nested.nested_tensor([ROW, ROW])
    returned_values: dict[str, Any] = {
        "a list": [LINEAR, ROW],
        "one": (LINEAR,),
        "a module": LINEAR,
        "no module": (1, ROW),
        "a program": (torch.export.export(LINEAR, (ROW,)), ROW),
        "only weights": (LINEAR.state_dict(), ROW),
        "weights without values": (torch.nn.Linear(2, 2, device="meta"), ROW),
        "an array": (LINEAR, (ROW.numpy(),)),
        "calibration": (LINEAR, ROW, 5),
        "an example": (LINEAR, 5),
        "no example": (LINEAR, ()),
        "a number": (LINEAR, (ROW, 5)),
        "a dict": (LINEAR, ({"x": ROW},)),
        "sparse": (LINEAR, (sparse,)),
        "empty": (LINEAR, (torch.ones(0, 2),)),
        "float64": (LINEAR, (ROW.double(),)),
        "float8": (LINEAR, (ROW.to(torch.float8_e4m3fn),)),
        "nested": (LINEAR, (torch.nested.nested_tensor([ROW, ROW], layout=torch.jagged),)),
        "nested and strided": (LINEAR, (strided,)),
        "meta": (LINEAR, (ROW.to("meta"),)),
        "shapes": (LINEAR, (ROW,), [(ROW,), (torch.ones(2, 2),)]),
        "dtypes": (LINEAR, ROW, [ROW.int()]),
        "a set": (LINEAR, ROW, [{}]),
        "keywords": (LINEAR, (ROW,), {"mask": ROW}),
        "dynamic shapes": (LINEAR, (ROW,), {"x": {0: None}}),
        "an input called self": (OddNames(), (ROW,)),
    }
    calls |= {f"returns {name}": unpack(value) for name, value in returned_values.items()}
    calls["a generator"] = unpack((LINEAR, ROW, user_code.load_function(of("lazy"))()))
    values = {
        "recipe": "r.py:f",
        "annotation": "a.py:f",
        "parts": (Part(Scheme.A16W8, node="n"),),
        "methods": ("encode",),
        "profile_level": "detailed",
    }
    choices = {
        f"{option} and {excluded}": {
            option: values.get(option, True),
            excluded: values.get(excluded, True),
        }
        for option, excluded, _ in EXCLUSIONS
    } | {
        "weight sharing": {"weight_sharing": True},
        "a method twice": {"methods": ("encode", "encode")},
        "a method called forward": {"methods": ("forward",)},
        "a part in blocks": {"parts": (Part(Scheme.A16W4_BLOCK, type="Linear"),)},
        "a part in float": {"parts": (Part(Scheme.FP16, module="body"),)},
    }
    for name, options in choices.items():
        calls[name] = lambda options=options: check_choices(Choices(**options), A8W8, "m")
    calls["parts of float"] = lambda: check_choices(
        Choices(parts=values["parts"]), Scheme.FP16, "m"
    )
    return calls


def make_job(function: str, labels: str) -> tuple[Any, ...]:
    """A metric of four sets, of which the program gives one wrong, the quantized model two."""
    right = np.arange(1.0, 5.0).reshape(4, 1)
    program, quantized = right.copy(), right.copy()
    program[0], quantized[:2] = 9, 9
    return Metric(function, labels, max_drop=0.1), [program], [right], [quantized]


def test_every_message_says_what_why_and_what_to_do(place: Path) -> None:
    shown = {}
    for name, call in list_refusals(place).items():
        with pytest.raises(QnnCiError) as caught:
            call()
        shown[name] = f"{type(caught.value).__name__} {caught.value.exit_code:d} {caught.value}"
    text = "".join(f"{name}\n  {message}\n" for name, message in shown.items())
    text = text.replace(str(place), "PLACE").replace(sys.executable, "PYTHON")
    # What numpy, torch and Python say differs from version to version.
    text = re.sub(r"(?<=why: ).*(allow_pickle|magic string|zip file|No such file).*", "WHY", text)
    text = re.sub(r"(?<=why: it returned a list: ).*", "WHY", text)
    text = re.sub(r"(raised SyntaxError): .*", r"\1", text)
    check_snapshot(SNAPSHOT, text)


def test_a_metric_is_measured_of_all_models_and_of_exchanged_inputs(place: Path) -> None:
    user_file = f"{place}/own.py"
    measured = user_data.run_metric(*make_job(f"{user_file}:score", f"{user_file}:labels"))
    assert (measured.value, measured.float32, measured.quantized) == (0.75, 1.0, 0.5)
    assert [*vars_of(measured)] == [0.75, 1.0, 0.0, 0.5]
    columns = np.stack([np.arange(1.0, 5.0), np.zeros(4)], 1)  # sets are exchanged, not elements
    (place / "second.py").write_text("def get(outputs, labels): return outputs[0][:, 1].mean()\n")
    second = Metric(f"{place}/second.py:get", f"{user_file}:labels", max_drop=0.1)
    exchanged = user_data.run_metric(second, [columns], [columns], None)
    assert {*vars_of(exchanged)} == {0.0, None}
    metric, *models = make_job(f"{user_file}:writes", f"{user_file}:labels")
    assert {*vars_of(user_data.run_metric(metric, *models))} == {14.0}  # each has its own copy
    assert all(model[0].any() for model in models)
    assert user_data.run_metric(metric, *models[:2], None).quantized is None
    (place / "in_c.py").write_text("best = max  # which has no signature")
    for function in (f"{user_file}:score", f"{place}/in_c.py:best"):
        user_data.check_metric(Metric(function, f"{user_file}:labels", max_drop=0.1), 4)


def vars_of(measured: Any) -> Iterator[float]:
    names = getattr(measured, "__struct_fields__", None) or vars(measured)
    return (getattr(measured, name) for name in names)


def test_sets_are_read_in_the_order_of_the_models_inputs(place: Path) -> None:
    def first(*names: str) -> list[float]:
        return [float(tensor[0]) for tensor in user_data.read_sets(f"{place}/named.npz", names)[0]]

    assert first("a", "b") == [1.0, 2.0]
    assert first("b", "a") == first() == [2.0, 1.0]
    sets = user_data.read_sets(f"{place}/own.py:many")
    assert [len(arrays) for arrays in sets] == [1] * 5
    for number, brackets in enumerate(("[]", "()")):
        path = place / f"lists_{number}.py"
        path.write_text(f"def sets(): return {brackets[0]}[1, 2], (1, 2){brackets[1]}")
        assert user_data.read_sets(f"{path}:sets") == [([1, 2],), (1, 2)]
    assert len(user_data.read_judged(f"{place}/four.npy")) == 4
    assert user_data.read_labels(f"{place}/four.npy", 4).shape == (4, 2)
    assert is_function("a/b.py:f")
    assert not is_function("a/b.npy")
    assert not is_function("b.py")


def test_the_result_of_a_factory_is_unpacked_into_model_example_and_sets() -> None:
    module, example, sets = factory.unpack("net.py:f", (LINEAR, ROW, [ROW, (ROW,), [ROW]]))
    assert module is LINEAR
    assert (len(example), len(sets)) == (1, 3)
    _, two, none = factory.unpack("net.py:f", (LINEAR, [ROW, ROW], None))
    assert (len(two), none) == (2, ())


@pytest.mark.parametrize(
    ("trace", "line"),
    [
        ("", ""),
        ('File "/no/where/net.py", line 3, in f\n  File "/no/where/b.py", line 4', " [b.py:4]"),
        (f'File "/no/where/net.py", line 3\nFile "{torch.__file__}", line 9', " [net.py:3]"),
        (f'File "{torch.__file__}", line 9, in x', ""),
        (f'File "{pytest.__file__}", line 9', " [__init__.py:9]"),
        (f'File "{torch.export.__file__}", line 9, in x', ""),
        ('File "<eval_with_key>.26", line 75, in forward', ""),
    ],
)
def test_the_line_of_a_node_is_the_innermost_line_of_the_users_code(trace: str, line: str) -> None:
    mark = user_code.find_origin(SimpleNamespace(meta={"stack_trace": trace})).mark
    assert mark == line


@pytest.mark.parametrize(
    "fails", ["return json.loads('{')", "raise SyntaxError('of no file')", "int('a')"]
)
def test_an_exception_is_blamed_on_the_innermost_line_of_the_users(
    tmp_path: Path, fails: str
) -> None:
    (tmp_path / "net.py").write_text(
        f"import json\ndef f():\n    return g()\ndef g():\n    {fails}\n"
    )
    with pytest.raises(FailedError) as caught:
        user_code.call_function(f"{tmp_path}/net.py:f")
    assert caught.value.why == "net.py, line 5, in g"
    assert describe_error(caught.value).places == (Place(file="net.py", line=5),)


def test_global_python_and_numpy_settings_of_a_factory_are_undone(place: Path) -> None:
    """ExecuTorch warns and prints, and references may divide by zero: stricter settings would
    fail."""
    (place / "strict.py").write_text(
        "import sys, warnings\nimport numpy as np\n"
        "warnings.simplefilter('error')\nnp.seterr(all='raise')\nsys.stdout = sys.stderr = None\n"
        "def make(): return warnings.filters[0][0]\n"
    )
    before = (warnings.filters[:], np.geterr(), sys.stdout, sys.stderr)
    assert user_code.call_function(f"{place}/strict.py:make") == "error"
    sys.modules.pop("model_strict")
    assert (warnings.filters[:], np.geterr(), sys.stdout, sys.stderr) == before


@pytest.mark.parametrize("result", ["1.0", b"1.0", bytearray(b"1")])
def test_a_metric_that_returns_a_text_with_a_number_is_refused(result: object) -> None:
    with pytest.raises(UsageError, match="did not return a number") as caught:
        user_data.read_value("net.py:score", result)
    assert type(result).__name__ in caught.value.why


@pytest.mark.parametrize(
    ("example", "sample", "count", "shapes", "fix"),
    [
        ((1, 3, 8, 8), (3, 8, 8), 16, ([16, 3, 8, 8], [16, 1, 3, 8, 8]), "array[:, None]"),
        ((1, 3, 8, 8), (8, 8), 3, ([3, 8, 8], [1, 1, 3, 8, 8]), "array[None, None]"),
        ((1, 4), (), 4, ([4], [1, 1, 4]), "array[None, None]"),
        ((4, 16), (16,), 4, ([4, 16], [1, 4, 16]), "array[None]"),
        ((4, 16), (16,), 40, ([40, 16], [10, 4, 16]), "array.reshape(-1, 4, 16)"),
    ],
)
def test_samples_that_lack_an_axis_are_refused_with_both_shapes(
    example: tuple[int, ...],
    sample: tuple[int, ...],
    count: int,
    shapes: tuple[list[int], list[int]],
    fix: str,
) -> None:
    with pytest.raises(QnnCiError, match="without the") as caught:
        factory.fit_sets("sets.npz", torch.ones(example), [torch.ones(sample)] * count)
    has, needs = shapes
    assert f"it has (float32{has}), and needs (float32{needs})" in caught.value.why
    assert fix in caught.value.fix


def test_arrays_of_another_byte_order_are_read_as_their_numbers(tmp_path: Path) -> None:
    numbers = np.array([[1.5, -2.0], [3.0, 4.0]])
    np.savez(tmp_path / "x.npz", x=numbers.astype(">f4"), ids=numbers.astype(">i8"))
    (first, ids), _ = user_data.read_sets(f"{tmp_path}/x.npz", ("x", "ids"))
    assert (first.dtype.str, first.tolist()) == ("<f4", [1.5, -2.0])
    assert (ids.dtype.str, ids.tolist()) == ("<i8", [1, -2])
