"""Users' programs are type-checked with the type hints of the package."""

import pytest
from types_checker import mypy

pytest.importorskip("mypy")

RIGHT = """
import shiplap
from shiplap.testing import assert_sound

plan: shiplap.Plan = shiplap.Plan.read("step.plan")
report: shiplap.Report = shiplap.check(plan, sends="eager", eager=64)
codes: list[str] = [finding.code for finding in report.findings]
seconds: float = shiplap.simulate("step.plan", hardware="b200").step_s
losses: list[float] = shiplap.run(plan, steps=2).loss
assert_sound(plan, allow={"D731"})
"""

WRONG = """
import shiplap

number: int = shiplap.check("step.plan")
shiplap.simulate("step.plan", hardwear="b200")
"""


def test_a_right_program(tmp_path):
    (tmp_path / "program.py").write_text(RIGHT)
    answer = mypy(tmp_path / "program.py", tmp_path / "cache")
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_a_wrong_program(tmp_path):
    (tmp_path / "program.py").write_text(WRONG)
    answer = mypy(tmp_path / "program.py", tmp_path / "cache")
    assert answer.returncode == 1
    assert "Incompatible types" in answer.stdout and "hardwear" in answer.stdout
