# SPDX-License-Identifier: MIT
"""The declarations that were made from the headers, against what a C compiler makes of the headers."""
import ctypes
import pathlib
import shutil
import subprocess
import sys

import pytest

import attune
from attune import _abi

INCLUDE = pathlib.Path(__file__).parents[3] / "include"
STRUCTS = {name: kind for name, kind in vars(_abi).items() if isinstance(kind, type) and issubclass(kind, ctypes.Structure)
           and name.startswith("attune_")}


def described():
    for name, kind in STRUCTS.items():
        yield f"sizeof({name})", ctypes.sizeof(kind)
        for field, *_ in kind._fields_:
            yield f"offsetof({name}, {field})", getattr(kind, field).offset
            yield f"sizeof((({name} *)0)->{field})", getattr(kind, field).size
    for name, value in vars(_abi).items():
        if name.startswith("ATTUNE_"):
            yield name, value


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_layout(tmp_path):
    expected = dict(described())
    lines = "".join(f'    printf("%lld\\n", (long long)({what}));\n' for what in expected)
    (tmp_path / "layout.c").write_text(
        f"#include <attune/attune.h>\n#include <attune/cuda.h>\n#include <stdio.h>\nint main(void)\n{{\n{lines}}}\n")
    subprocess.run(["cc", "-I", INCLUDE, "-o", tmp_path / "layout", tmp_path / "layout.c"], check=True)
    printed = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True).stdout.split()
    assert dict(zip(expected, map(int, printed))) == expected
    assert len(STRUCTS) > 25 and len(expected) > 500


def test_every_function_is_declared():
    """Each name that follows ATTUNE_API in the headers has a prototype, and the library exports it."""
    import re

    text = "".join((INCLUDE / "attune" / name).read_text() for name in ("attune.h", "cuda.h"))
    names = set(re.findall(r"^ATTUNE_API[^;(]*?(\w+)\(", text, re.M))
    assert names == set(_abi.PROTOTYPES)
    from attune._library import lib

    assert all(hasattr(lib, name) for name in names if "cuda" not in name)


def test_prototypes(tmp_path):
    """A sample that ctypes would silently get wrong."""
    assert _abi.PROTOTYPES["attune_plan_workspace_size"] == (ctypes.c_uint64, [ctypes.c_void_p])
    assert _abi.PROTOTYPES["attune_mask_stats_get"][1][1] is ctypes.c_bool
    assert attune.version() == attune.__version__


def test_source_that_is_not_built(tmp_path):
    shutil.copytree(pathlib.Path(__file__).parents[1] / "attune", tmp_path / "attune", ignore=shutil.ignore_patterns("_abi.py", "__pycache__"))
    done = subprocess.run([sys.executable, "-c", "import attune"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode and "pip install ." in done.stderr
