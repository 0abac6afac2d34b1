"""Speech of espeak-ng and tones, 16 kHz, each with what is known of it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from functools import cache
from typing import Any

import espeakng_loader
import numpy as np

RATE = 16_000
SYNCHRONOUS, UTF8, CHARACTERS = 2, 1, 1  # of speak_lib.h
VOICES = ("en-us+m1", "en-us+f2", "en-us+m3", "en-us+f4", "en-us+m5", "en-us+f1")
# The first twelve are calibrated with, the others judged.
SENTENCES = (
    "The birch canoe slid on the smooth planks.",
    "Glue the sheet to the dark blue background.",
    "It is easy to tell the depth of a well.",
    "These days a chicken leg is a rare dish.",
    "Rice is often served in round bowls.",
    "The juice of lemons makes fine punch.",
    "The box was thrown beside the parked truck.",
    "The hogs were fed chopped corn and garbage.",
    "Four hours of steady work faced us.",
    "A large size in stockings is hard to sell.",
    "The boy was there when the sun rose.",
    "A rod is used to catch pink salmon.",
    "The source of the huge river is the clear spring.",
    "Kick the ball straight and follow through.",
    "Help the woman get back to her feet.",
    "A pot of tea helps to pass the evening.",
    "Smoky fires lack flame and heat.",
    "The soft cushion broke the man's fall.",
    "The salt breeze came across from the sea.",
    "The girl at the booth sold fifty bonds.",
)
CALIBRATED = 12

Array = np.ndarray[Any, Any]


@cache
def say(text: str, voice: str = VOICES[0]) -> Array:
    """A sentence as float32 samples, -1 to 1. It is said in a process of its own: what espeak-ng
    said before changes how it says the next."""
    argv = [sys.executable, __file__, text, voice]
    output = subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout
    rate = int.from_bytes(output[:4], "little")
    wave = np.frombuffer(output[4:], np.int16) / 32768
    count = len(wave) * RATE // rate
    return (np.fft.irfft(np.fft.rfft(wave)[: count // 2 + 1], count) * count / len(wave)).astype(
        np.float32
    )


def write_speech(text: str, voice: str) -> None:
    """Write the sampling rate, 4 bytes, and 16-bit samples to standard output."""
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    rate = library.espeak_Initialize(SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), 0)
    samples = [rate.to_bytes(4, "little")]

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    def keep(wave: Any, count: int, _: Any) -> int:
        if wave and count:
            samples.append(ctypes.string_at(wave, 2 * count))
        return 0

    library.espeak_SetSynthCallback(keep)
    if library.espeak_SetVoiceByName(voice.encode()):
        raise RuntimeError(f"espeak-ng has no voice {voice}")
    line = text.encode() + b"\0"
    library.espeak_Synth(line, len(line), 0, CHARACTERS, 0, UTF8, None, None)
    library.espeak_Synchronize()
    sys.stdout.buffer.write(b"".join(samples))


def talk(numbers: range, random: np.random.Generator) -> tuple[Array, Array]:
    """Sentences with pauses between them and noise over all; and for each sample, is it speech."""
    clean: list[Array] = []
    for number in numbers:
        pause = np.zeros(int(random.uniform(0.3, 1.0) * RATE), np.float32)
        clean += [pause, say(SENTENCES[number], VOICES[number % len(VOICES)])]
    wave = np.concatenate(clean)
    power = np.convolve(wave**2, np.ones(RATE // 50) / (RATE // 50), "same")
    noisy = wave + 0.003 * random.standard_normal(len(wave))
    return noisy.astype(np.float32), power > 1e-5


def tone(hertz: float, samples: int, random: np.random.Generator) -> Array:
    """A harmonic tone with a random timbre and some noise."""
    time = np.arange(samples) / RATE
    wave = 0.02 * random.standard_normal(samples)
    for harmonic in range(1, 9):
        if harmonic * hertz < RATE / 2:
            phase = 2 * np.pi * (harmonic * hertz * time + random.uniform())
            wave += random.uniform(0.3, 1) / harmonic * np.sin(phase)
    return (0.3 * wave / np.abs(wave).max()).astype(np.float32)


def find_pitch(frame: Array, lowest: float = 70, highest: float = 400) -> float:
    """The pitch of a voiced frame in Hz by autocorrelation, 0 where it is not clearly periodic."""
    lags = np.arange(int(RATE / highest), int(RATE / lowest))
    half = len(frame) - lags[-1] - 2
    first = frame[:half] - frame[:half].mean()
    later = np.lib.stride_tricks.sliding_window_view(frame, half)[lags[0] - 1 : lags[-1] + 2]
    later = later - later.mean(1, keepdims=True)
    curve = later @ first / np.sqrt((first @ first) * np.square(later).sum(1) + 1e-12)
    best = int(curve[1:-1].argmax()) + 1
    near = np.flatnonzero(curve[1:-1] > 0.97 * curve[best]) + 1
    peaks = [at for at in near if curve[at] >= curve[at - 1] and curve[at] >= curve[at + 1]]
    at = peaks[0] if peaks else best
    if curve[at] < 0.93 or first @ first < 1e-3:
        return 0.0
    left, middle, right = curve[at - 1 : at + 2]
    shift = 0.5 * (left - right) / (left - 2 * middle + right)
    return float(RATE / (lags[0] + at - 1 + shift))


if __name__ == "__main__":
    write_speech(*sys.argv[1:])
