"""The types that the package states are those that users' programs are checked with."""

import pathlib
import subprocess
import sys

import pytest

import shiplap

pytest.importorskip("mypy")

RIGHT = """
import shiplap
from shiplap.testing import assert_sound

plan: shiplap.Plan = shiplap.Plan.read("step.plan")
report: shiplap.Report = shiplap.check(plan, sends="eager", eager=64)
codes: list[str] = [finding.code for finding in report.findings]
seconds: float = shiplap.simulate("step.plan", hardware="b200").step_time
losses: list[float] = shiplap.run(plan, steps=2).loss
assert_sound(plan, allow={"D731"})
"""

WRONG = """
import shiplap

number: int = shiplap.check("step.plan")
shiplap.simulate("step.plan", hardwear="b200")
"""


def mypy(text: str, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    program = folder / "program.py"
    program.write_text(text)
    package = pathlib.Path(shiplap.__file__).parent.parent
    where = {} if package.name == "site-packages" else {"MYPYPATH": str(package)}
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", str(program)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **where},
    )


def test_a_right_program(tmp_path):
    answer = mypy(RIGHT, tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_a_wrong_program(tmp_path):
    answer = mypy(WRONG, tmp_path)
    assert answer.returncode == 1
    assert "Incompatible types" in answer.stdout and "hardwear" in answer.stdout
