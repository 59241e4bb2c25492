"""The examples in Python print what they should, exactly."""

import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("program, output, needs", [
    ("simple_usage.py", "dispatch/simple_usage.txt", "numpy"),  # that of C++
    ("advanced_scenarios.py", "advanced_scenarios.txt", "numpy"),
    ("torch_attention.py", "torch_attention.txt", "torch"),
    ("jax_mlp.py", "jax_mlp.txt", "jax"),
])
def test_prints_what_it_should(program, output, needs):
    pytest.importorskip(needs)
    done = subprocess.run([sys.executable, EXAMPLES / program], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    # XLA logs its connections on standard output, from several processes at once.
    said = "".join(line for line in done.stdout.splitlines(keepends=True)
                   if line.strip() and "peer ranks" not in line) if needs == "jax" else done.stdout
    assert said == (EXAMPLES / output).read_text(encoding="utf-8")


def test_the_advanced_one_says_what_that_of_cpp_says():
    ours = (EXAMPLES / "advanced_scenarios.txt").read_text(encoding="utf-8")
    theirs = (EXAMPLES / "dispatch" / "advanced_scenarios.txt").read_text(encoding="utf-8")
    for begin, end in [("scenario 1", "scenario 3"), ("scenario 4", "scenario 5")]:
        assert ours[ours.index(begin):ours.index(end)] == theirs[theirs.index(begin):
                                                                 theirs.index(end)]
