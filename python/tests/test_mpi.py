"""MPI is found when a job is started, not before. tools/check-wheel sets its location."""

import json
import os
import subprocess
import sys

import pytest

import shiplap

MPIS = [mpi for mpi in os.environ.get("SHIPLAP_TEST_MPIS", "").split(":") if mpi]


def run_on_mpi(plan, path: str, libraries: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shiplap", "run", str(plan), "--backend", "mpi", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PATH": path, "LD_LIBRARY_PATH": libraries},
    )


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("mpi") / "step.plan"
    shiplap.train("ddp", ranks=2, batch=2, for_run=True).plan.save(path)
    return path


def test_without_one(plan):
    answer = run_on_mpi(plan, "/nowhere")
    assert answer.returncode == 3
    assert "D306" in answer.stderr


@pytest.mark.skipif(not MPIS, reason="SHIPLAP_TEST_MPIS names no folder with an mpirun")
def test_the_same_losses_as_on_threads(plan):
    expected = shiplap.run(plan).loss
    for folder in MPIS:
        answer = run_on_mpi(plan, f"{folder}:/usr/bin:/bin", f"{folder}/../lib")
        assert answer.returncode == 0, answer.stderr
        # Its libraries may bring a oneDNN, which sums in another order.
        assert json.loads(answer.stdout)["loss"] == pytest.approx(expected, rel=1e-6), folder
