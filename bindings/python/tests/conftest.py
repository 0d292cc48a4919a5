# SPDX-License-Identifier: MIT
"""The devices and the golden cases."""
import json
import pathlib

import numpy as np
import pytest

GOLDENS = sorted(path.parent for path in (pathlib.Path(__file__).parents[3] / "tests/goldens").glob("*/case.json"))


class Case:
    """A golden case: its arrays by name, as NumPy's."""

    def __init__(self, folder):
        description = json.loads((folder / "case.json").read_text())
        self.arrays = {path.stem: np.load(path) for path in folder.glob("*.npy")}
        self.mask, self.score, self.scale = description["mask"], description["score"], description["scale"]
        self.captures = {name: self.arrays[name] for name in description["captures"]}
        self.wanted = description["grad_captures"]

    def __getitem__(self, name):
        return self.arrays[name]


@pytest.fixture(params=GOLDENS, ids=lambda folder: folder.name)
def golden(request):
    return Case(request.param)
