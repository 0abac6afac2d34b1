#!/usr/bin/env python3
"""Stands in for emulators that lie: the outputs of a right run, wrong in one way.

As a program it takes what a run left for --keep-artifacts, CASE=LIE for each case, and
qnn_executor_runner's flags.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # [sample, *shape]
SEED = 11


def draw(like: Array) -> Array:
    rms = np.sqrt(np.mean(like.astype(np.float64) ** 2))
    return (np.random.default_rng(SEED).standard_normal(like.shape) * rms).astype(like.dtype)


def channel_axis(right: Array) -> int:
    return 2 if right.ndim > 3 and right.shape[2] > 1 else right.ndim - 1


def roll_channels(right: Array) -> Array:
    return np.roll(right, 1, channel_axis(right))


def zero_channel(right: Array, *, loudest: bool) -> Array:
    axis = channel_axis(right)
    other_axes = tuple(number for number in range(right.ndim) if number != axis)
    rms = np.sqrt(np.mean(right.astype(np.float64) ** 2, axis=other_axes))
    wrong = right.copy()
    wrong[(slice(None),) * axis + (int(rms.argmax() if loudest else rms.argmin()),)] = 0
    return wrong


def swap_channels(right: Array) -> Array:
    axis = channel_axis(right)
    order = np.arange(right.shape[axis])
    order[:2] = order[:2][::-1]
    return np.take(right, order, axis)


def garble(right: Array, *, last: bool, share: float = 0.02) -> Array:
    wrong = right.copy()
    flat, noise = wrong.reshape(len(wrong), -1), draw(right).reshape(len(wrong), -1)
    count = max(1, round(flat.shape[1] * share))
    place = slice(-count, None) if last else slice(count)
    flat[:, place] = noise[:, place]
    return wrong


def put(right: Array, value: float) -> Array:
    wrong = right.copy()
    wrong.reshape(-1)[wrong.size // 2] = value
    return wrong


def requantize(right: Array, bits: int) -> Array:
    low, high = min(float(right.min()), 0.0), max(float(right.max()), 0.0)
    step = (high - low) / (2**bits - 1)
    return (np.round(right / step) * step).astype(right.dtype)


def repeat_half(right: Array) -> Array:
    wrong = right.copy()
    flat = wrong.reshape(len(wrong), -1)
    half = flat.shape[1] // 2
    flat[:, half : 2 * half] = flat[:, :half]
    return wrong


def move_channels_last(right: Array) -> Array:
    """Memory as of the other layout; what has one axis is reversed, one channel turned."""
    if right.ndim < 4:
        return right[..., ::-1]
    return np.moveaxis(right, channel_axis(right), -1 if right.shape[2] > 1 else -2).reshape(
        right.shape
    )


def round_to_bfloat16(right: Array) -> Array:
    bits = np.ascontiguousarray(right, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return rounded.astype(np.uint32).view(np.float32).reshape(right.shape)


def shift_element(right: Array) -> Array:
    rms = np.sqrt(np.mean(right.astype(np.float64) ** 2))
    return put(right, right.reshape(-1)[right.size // 2] + 0.5 * rms)


def amplify_channel(right: Array) -> Array:
    wrong = right.copy()
    wrong[(slice(None),) * channel_axis(right) + (0,)] *= 1.1
    return wrong


LIES: dict[str, Callable[[Array], Array]] = {
    "zeros": np.zeros_like,
    "a constant": lambda right: np.full_like(right, right.mean()),
    "noise": draw,
    "one NaN": lambda right: put(right, np.nan),
    "one infinity": lambda right: put(right, np.inf),
    "one huge element": lambda right: put(right, float(np.abs(right).max()) * 100),
    "permuted": lambda right: (
        np.random.default_rng(SEED).permutation(right.ravel()).reshape(right.shape)
    ),
    "another input's": lambda right: np.roll(right, 1, axis=0),
    "the first input's for all": lambda right: np.repeat(right[:1], len(right), axis=0),
    "the last input's zero": lambda right: np.concatenate([right[:-1], right[-1:] * 0]),
    "negated": np.negative,
    "absolute values": np.abs,
    "one sixteenth": lambda right: right / 16,
    "twice": lambda right: right * 2,
    "a gain of 5 %": lambda right: (right * 1.05).astype(right.dtype),
    "a gain of 2 %": lambda right: (right * 1.02).astype(right.dtype),
    "a gain of 1 %": lambda right: (right * 1.01).astype(right.dtype),
    "an offset of 5 %": lambda right: (right + 0.05 * right.std()).astype(right.dtype),
    "an offset of 2 %": lambda right: (right + 0.02 * right.std()).astype(right.dtype),
    "the last 2 % garbage": lambda right: garble(right, last=True),
    "the first 2 % garbage": lambda right: garble(right, last=False),
    "the weakest channel zero": lambda right: zero_channel(right, loudest=False),
    "the loudest channel zero": lambda right: zero_channel(right, loudest=True),
    "channels one on": roll_channels,
    "two channels swapped": swap_channels,
    "another layout": move_channels_last,
    "reversed": lambda right: np.ascontiguousarray(right.reshape(len(right), -1)[:, ::-1]).reshape(
        right.shape
    ),
    "half of it twice": repeat_half,
    "byte order": lambda right: right.byteswap(),
    "clipped at half": lambda right: np.clip(right, right.min() / 2, right.max() / 2),
    "clipped at 0.8": lambda right: np.clip(right, right.min() * 0.8, right.max() * 0.8),
    "rounded to 8 bits": lambda right: requantize(right, 8),
    "rounded to 6 bits": lambda right: requantize(right, 6),
    "a gain of 0.1 %": lambda right: (right * 1.001).astype(right.dtype),
    "rounded to bfloat16": round_to_bfloat16,
    "one element off by half": shift_element,
    "a channel 10 % louder": amplify_channel,
    "noise of 2 %": lambda right: (right + 0.02 * draw(right)).astype(right.dtype),
    "noise of 20 dB": lambda right: (right + 0.1 * draw(right)).astype(right.dtype),
}


def read_column(directory: Path, pattern: str, index: int, record: Any) -> Array:
    info = record["outputs"][index]
    return np.stack(
        [
            np.fromfile(directory / pattern.format(number, index), info["dtype"]).reshape(
                info["shape"]
            )
            for number in range(record["sets"])
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("kept", type=Path)
    parser.add_argument("lies", nargs="+", metavar="CASE=LIE")
    for flag in ("--model_path", "--input_list_path", "--output_folder_path"):
        parser.add_argument(flag, type=Path)
    args = parser.parse_args()
    name = args.output_folder_path.parent.name
    lie = LIES[dict(word.split("=") for word in args.lies)[name]]
    folder = args.kept / name
    record = json.loads((folder / "artifact" / "artifact.json").read_text())["compiled"]
    for index in range(len(record["outputs"])):
        wrong = lie(read_column(folder / "outputs", "output_{}_{}.raw", index, record))
        for number, array in enumerate(wrong):
            file = args.output_folder_path / f"output_{number}_{index}.raw"
            file.write_bytes(np.ascontiguousarray(array).tobytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
