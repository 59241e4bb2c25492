"""Fixtures of all tests."""

import os
import pathlib
import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    """The folder with examples/, docs/ and museum/ in it."""
    return pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def command():
    """Runs the command line tool of the package: ``command("check", "step.plan")``."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "shiplap", *map(str, words)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "COLUMNS": "100"},
        )

    return run
