"""Errors of operators for tests of the prediction, in place of those in manifests/rounding."""

from __future__ import annotations

from ci.models.rounding import ADD, FLOAT16, LAYER, UNIFORM, Term

# The largest absolute error of an activation after a layer.
ACTIVATIONS = dict.fromkeys(("sigmoid", "gelu", "silu", "elu"), 2 ** (-8)) | {"tanh": 2**-7}
SOFTMAX = 2**-9  # the largest relative error
TERMS = {
    **{
        (name, FLOAT16, LAYER): Term(
            operator=name, numbers=FLOAT16, after=LAYER, steps=bound / UNIFORM
        )
        for name, bound in ACTIVATIONS.items()
    },
    ("softmax", FLOAT16, ""): Term(operator="softmax", numbers=FLOAT16, relative=SOFTMAX / UNIFORM),
    ("tanh", FLOAT16, ADD): Term(
        operator="tanh", numbers=FLOAT16, after=ADD, steps=2**-6 / UNIFORM
    ),
    ("sin", "8", ""): Term(operator="sin", numbers="8", steps=2.0, bias=-1.5, varies=0.5),
    ("cos", "16", ""): Term(operator="cos", numbers="16", relative=2**-6 / UNIFORM),
    ("exp", "16", ""): Term(operator="exp", numbers="16", row=2**-6 / UNIFORM),
}
