# SPDX-License-Identifier: MIT
"""The programs of the guide, and those of the README one after the other, run as they stand."""
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]


def programs():
    guide = (ROOT / "docs/guide/python.md").read_text()
    for name, text in re.findall(r"^```python (\S+)$\n(.*?)^```$", guide, re.M | re.S):
        yield name, text
    blocks = re.findall(r"^```python$\n(.*?)^```$", (ROOT / "bindings/python/README.md").read_text(), re.M | re.S)
    yield "README, NumPy", blocks[0]
    yield "README, PyTorch", "".join(blocks[1:]).replace('"cuda"', '"cpu"')


@pytest.mark.parametrize("name, text", list(programs()), ids=lambda value: value if len(value) < 40 else "")
def test_program(name, text, tmp_path):
    if "import torch" in text:
        pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(text)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_example(tmp_path):
    """attune and PyTorch's own operations give the same losses, step by step."""
    pytest.importorskip("torch")
    import json

    example = ROOT / "bindings/python/examples/train.py"
    # The loss of so few steps hardly falls, of which the exit status speaks.
    subprocess.run([sys.executable, example, "--device", "cpu", "--size", "small", "--steps", "3", "--with", "attune,dense", "--json",
                    tmp_path / "curves.json"], capture_output=True, timeout=500)
    curves = json.loads((tmp_path / "curves.json").read_text())
    assert len(curves) == 6
    for ours, theirs in zip(curves[::2], curves[1::2]):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-3) and ours["losses"][0] != ours["losses"][2]
