"""mypy, as a user of the package runs it."""

import os
import pathlib
import subprocess
import sys

import shiplap

PACKAGE = pathlib.Path(shiplap.__file__).parent.parent


def mypy(program: pathlib.Path, cache: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """What it says of a program. An installed package it finds by itself."""
    where = {} if PACKAGE.name == "site-packages" else {"MYPYPATH": str(PACKAGE)}
    command = ["-m", "mypy", "--strict", "--explicit-package-bases", "--cache-dir", str(cache)]
    return subprocess.run(
        [sys.executable, *command, str(program)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=program.parent,
        env={**os.environ, **where},
    )
