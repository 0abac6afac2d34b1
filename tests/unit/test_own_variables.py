"""What a verb sets in the environment for its later steps does not reach the next test."""

from __future__ import annotations

import os

import pytest

from provisioning.artifacts.choice import ADAPTOR_VARIABLE, read_choice

OF_USER = os.environ.get(ADAPTOR_VARIABLE)


@pytest.mark.parametrize("adaptor", ["wheel", "overlay"])
def test_a_choice_ends_with_its_test(adaptor: str) -> None:
    assert os.environ.get(ADAPTOR_VARIABLE) == OF_USER
    read_choice(adaptor=adaptor)
    assert os.environ[ADAPTOR_VARIABLE] == adaptor
