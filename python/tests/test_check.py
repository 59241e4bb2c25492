"""check in Python: the same results as the command line, and assert_sound for test suites."""

import json
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

import shiplap
from shiplap.testing import assert_sound

RIGHT = "0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1\n"
WRONG = "0F0,0B0,0F1,0B1\n,1F1,1B1,1F0,1B0\n"


def test_every_example_is_judged_as_the_command_judges_it(root, command):
    for path in sorted((root / "examples" / "plans").glob("*.plan")):
        report = shiplap.check(path)
        answer = command("check", path, "--json")
        said = json.loads(answer.stdout)
        assert report.to_dict() == said
        assert bool(report) == report.sound == (answer.returncode == 0)
        assert str(report) == command("check", path).stdout.strip()
        assert report.text(verbose=True) == command("check", path, "-v").stdout.strip()


def test_every_bug_of_the_museum_is_found(root):
    exhibits = sorted((root / "museum").rglob("*.plan"))
    assert len(exhibits) >= 10
    judged = {path.name: shiplap.check(path) for path in exhibits}
    assert sum(not report for report in judged.values()) >= 10


def test_a_finding_has_a_witness(root):
    report = shiplap.check(root / "examples" / "plans" / "pytorch_172668.plan")
    assert not report.sound
    finding = report.findings[0]
    assert finding.code in report.codes and finding.rank is not None and finding.notes
    assert finding.code in str(finding) and finding.code in repr(finding)
    assert finding.code in report._repr_html_()
    assert report.to_sarif()["version"] == "2.1.0"


def test_fix(root):
    report = shiplap.check(root / "examples" / "plans" / "pytorch_172668.plan")
    plan, what = report.fix()
    assert shiplap.check(plan).sound
    assert "before" in what
    assert shiplap.check(plan).fix() is None


def test_a_schedule_of_torchtitan(tmp_path):
    right = tmp_path / "right.csv"
    right.write_text(RIGHT)
    assert_sound(right)
    wrong = tmp_path / "wrong.csv"
    wrong.write_text(WRONG)
    with pytest.raises(AssertionError) as caught:
        assert_sound(wrong)
    assert "wrong.csv" in str(caught.value) and "is not sound" in str(caught.value)


def test_what_is_allowed_is_accepted(tmp_path):
    plan = shiplap.Plan.from_schedule(WRONG)
    codes = shiplap.check(plan).codes
    assert codes
    assert_sound(plan, allow=codes)
    with pytest.raises(AssertionError):
        assert_sound(plan, allow=codes[1:] if len(set(codes)) > 1 else [])


RING = """shiplap-plan 1
mesh pp=2
program all on all
  buffer x rows 1 row_bytes 8 bf16
  buffer y rows 1 row_bytes 8 bf16
  send x to pp+1 wrap async
  receive y from pp-1 wrap
"""


def test_libraries_have_rules_of_their_own():
    plan = shiplap.Plan.parse(RING)
    assert shiplap.check(plan).codes == ["D723"]
    assert shiplap.check(plan, rules="nccl").codes == ["D723"]
    for rules in ("mpi", "gloo"):
        assert shiplap.check(plan, rules=rules).sound
        assert_sound(plan, rules=rules)


def test_arguments_that_make_no_sense():
    plan = shiplap.Plan.from_schedule(RIGHT)
    with pytest.raises(shiplap.InputError, match="rendezvous"):
        shiplap.check(plan, sends="rendesvous")
    with pytest.raises(shiplap.InputError, match="nccl"):
        shiplap.check(plan, rules="ncll")
    with pytest.raises(TypeError, match="expected a Plan"):
        shiplap.check(42)
    with pytest.raises(shiplap.InputError):
        shiplap.check("no_such.plan")


def test_in_a_teams_own_tests(tmp_path):
    """The failure shows the finding, not the inside of the helper."""
    (tmp_path / "wrong.csv").write_text(WRONG)
    (tmp_path / "test_ours.py").write_text(
        textwrap.dedent(
            """
            from shiplap.testing import assert_sound

            def test_schedule():
                assert_sound("wrong.csv")
            """
        )
    )
    package = pathlib.Path(shiplap.__file__).parent.parent
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "test_ours.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(package.resolve())},
    )
    assert answer.returncode == 1
    assert "wrong.csv is not sound" in answer.stdout
    assert "raise AssertionError" not in answer.stdout
