"""Which models are tried, in which schemes, with which faults, and what a user asks of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SCHEMES = {"torch": ("fp16", "8a8w", "16a8w"), "onnx": ("fp16", "u8", "u16a8w")}
OF_CALIBRATION = ("noise", "range")
OF_DATA = (*OF_CALIBRATION, "transposed")
OF_MODULE = ("layer", "channel")  # good in all models: no metric notices them
OF_MODEL = (*OF_MODULE, "swapped")
WITH_OUTPUTS = {  # models with several outputs
    "torch": ("pnet", "rnet", "onet"),
    "onnx": ("silero",),
}


@dataclass(frozen=True)
class Entry:
    """``sets`` is a function of data.py, ``metric`` one of metrics.py. ``lowest`` is what a user
    asks of the metric, ``drop`` how much less than the float model has is still good.

    ``spoilt`` is the scheme in which the model is tried with each fault, empty for a model that
    has a better form in the corpus. A ``slow`` model is not tried with those of OF_MODULE, since
    a case of it takes a minute.
    """

    sets: str
    metric: str
    lowest: float
    drop: float
    spoilt: str
    judged: int = 12
    cpu: bool = False  # whether a node may stay on the CPU, which the plain script allows
    slow: bool = False


TORCH = {
    "pnet": Entry("faces_far", "pnet_overlap", 0.5, 0.05, "8a8w"),
    "rnet": Entry("rnet", "crop_overlap", 0.7, 0.03, "8a8w"),
    "onet": Entry("onet", "crop_overlap", 0.7, 0.03, "8a8w"),
    "crepe": Entry("crepe", "crepe_pitch", 0.95, 0.05, ""),
    "crepe_mended": Entry("crepe", "crepe_pitch", 0.95, 0.05, "8a8w", slow=True),
    "pesto": Entry("pesto", "pesto_pitch", 0.95, 0.05, "", cpu=True),
    "silero": Entry("silero", "voice_activity", 0.9, 0.05, "", 40),
    "silero_gates": Entry("silero", "voice_activity", 0.9, 0.05, "", 40),
    "minilm": Entry("minilm", "ranking", 0.9, 0.05, ""),
    "minilm_mended": Entry("minilm", "ranking", 0.9, 0.05, "16a8w", slow=True),
    "appearance": Entry("appearance", "ranking", 0.8, 0.1, "8a8w", 8, slow=True),
}
ONNX = {
    "silero": Entry("silero_stacked", "voice_activity", 0.9, 0.05, "u16a8w", 40, slow=True),
    "text_found": Entry("text_found", "text_area", 0.6, 0.05, "u16a8w", 6, slow=True),
    "text_turned": Entry("text_turned", "accuracy", 0.8, 0.09, "u8"),
    "text_read": Entry("text_read", "edit_distance", 0.75, 0.05, "", 8),
    "page_turned": Entry("page_turned", "accuracy", 0.9, 0.09, "u8"),
    "centerface": Entry("centerface", "centre_overlap", 0.7, 0.05, "", 8),
    "nudenet": Entry("nudenet", "yolo_overlap", 0.65, 0.05, "u8", 4, slow=True),
    "files": Entry("kinds_of_files", "accuracy", 0.9, 0.09, ""),
    "notes": Entry("music", "notes", 0.7, 0.05, "", 4),
}
LANES = {"torch": TORCH, "onnx": ONNX}


@dataclass(frozen=True)
class Case:
    """``fault`` is empty for a model as its package ships it."""

    lane: str
    model: str
    fault: str
    scheme: str

    @property
    def name(self) -> str:
        """What the policy calls it."""
        return f"{self.model}-{self.fault}" if self.fault else self.model


def list_cases() -> Iterator[Case]:
    for lane, entries in LANES.items():
        for model, entry in entries.items():
            yield from (Case(lane, model, "", scheme) for scheme in SCHEMES[lane])
            if entry.spoilt:
                faults = [*OF_DATA]
                if not entry.slow:
                    faults += OF_MODULE
                if model in WITH_OUTPUTS[lane]:
                    faults.append("swapped")
                yield from (Case(lane, model, fault, entry.spoilt) for fault in faults)
