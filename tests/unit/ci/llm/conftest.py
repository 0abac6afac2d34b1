"""The decoder of ours, and the runs that a program of it in float16 is judged by."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

from ci.cases.engine import Staging
from ci.cases.spec import CaseSpec
from ci.llm import tiny
from ci.llm.decoder import make_decoder
from ci.llm.interface import Interface
from ci.llm.lowering import DecoderLowering, Subject, read_runs
from ci.llm.tokenizers import read_tokenizer
from ci.llm.weights import read_weights
from ci.models.schemes import Scheme
from tests.unit.ci.llm.decoders import CONTEXT, PLACE, PREFILL, Tiny


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    tokenizer = read_tokenizer(PLACE / "tokenizer.bin")
    config, weights = read_weights(PLACE / "weights.bin")
    prompts = tuple(tokenizer.prompt(text) for text in tiny.PROMPTS)
    subject = Subject(PLACE / "weights.bin", prompts, 40, CONTEXT, PREFILL, 1, 2)
    directory = tmp_path_factory.mktemp("tiny")
    spec = CaseSpec("tiny", Scheme.FP16, "SM8750")
    lowering = DecoderLowering(subject, spec, Staging(directory, directory / "log", directory))
    interface = Interface.of(config, CONTEXT, PREFILL)
    decoder = make_decoder(config, weights, CONTEXT)
    modules = {1: decoder, PREFILL: decoder}
    sets = lowering.collect_inputs(decoder, interface)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.export's own
        lowering.write_runs(decoder, modules, interface, sets)
    return Tiny(config, weights, interface, read_runs(directory), tokenizer)
