"""The library that multiplies: pip's oneDNN, or plain loops with a warning."""

import subprocess
import sys

import pytest

from shiplap import _gemm_library

ABSENT = """
import importlib.metadata, warnings
def files(name):
    raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.files = files
from shiplap import _gemm_library
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(_gemm_library.load(), _gemm_library.load())
    print(*(w.message for w in caught), sep="\\n")
"""


def test_one_dnn_of_pip_is_found():
    pytest.importorskip("torch")  # the environment without libraries has no oneDNN either
    assert _gemm_library.load().startswith("oneDNN")


def test_plain_loops_warn_once():
    run = subprocess.run([sys.executable, "-c", ABSENT], capture_output=True, text=True, check=True)
    names, *warned = run.stdout.strip().splitlines()
    if names.startswith("oneDNN"):
        pytest.skip("this build finds oneDNN in its own folder")
    assert names == "reference reference"
    (message,) = warned
    assert message.startswith("GEMMs run in plain loops")
    assert "pip install onednn-cpu-gomp" in message
