"""shiplap.record: healthy scripts are sound, and planted faults are found at the user's line.

The scripts in record/ and the faults in record/faults.json were written by someone who had not read
the recorder. Here a few of them run; bench/python/record.py runs all.
"""

import json
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import shiplap  # noqa: E402
from shiplap.record import RecordingError, assert_same_program, record_script  # noqa: E402
from shiplap.record import _answer  # noqa: E402
from shiplap.record._mesh import Mesh, grid_of, spans  # noqa: E402

SCRIPTS = pathlib.Path(__file__).parent / "record"
FAULTS = {fault["name"]: fault for fault in json.loads((SCRIPTS / "faults.json").read_text())}


def write(tmp_path: pathlib.Path, text: str) -> str:
    script = tmp_path / "train.py"
    script.write_text(text)
    return str(script)


HEAD = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x = torch.ones(8, device="cuda")
"""


# ---- meshes


def test_ranks_that_form_a_grid():
    assert grid_of([0, 1, 2, 3]) == [(1, 4)]
    assert grid_of([1, 3, 5]) == [(2, 3)]
    assert grid_of([0, 1, 4, 5]) == [(1, 2), (4, 2)]
    assert grid_of([7]) == []
    for ranks in ([0, 1, 3], [1, 0], [0, 1, 4, 6], [0, 0]):
        assert grid_of(ranks) is None, ranks


def test_a_mesh_is_found_from_its_groups():
    mesh = Mesh(
        16, [(0, 1), (0, 2, 4, 6), (0, 8), tuple(range(16))], {(1, 2): "tp", (8, 2): "rank"}
    )
    assert mesh.text() == "rank_8=2 axis1=4 tp=2"
    assert mesh.group((8, 10, 12, 14)) == "axis1"
    assert mesh.group((0, 1, 8, 9)) == "(rank_8, tp)"
    assert mesh.group((0, 5)) == "ranks{0, 5}"
    assert mesh.place((0, 1, 8, 9)) == "(rank_8*2+tp)"
    assert [mesh.peer(0, other) for other in (1, 2, 6, 3)] == [
        "tp+1",
        "axis1+1",
        "axis1-1 wrap",
        "rank 3",
    ]
    assert mesh.pair(0, 2) == mesh.pair(2, 0) == mesh.pair(9, 11) == "p_axis10_axis11"
    assert mesh.selector([0, 1, 2, 3]) == "rank_8=0 axis1=0..1"
    assert mesh.selector([0, 3]) == "rank=0|3"
    assert spans([0, 1, 2, 5, 7, 8]) == "0..2|5|7..8"


# ---- small scripts


def test_calls_sizes_and_lines(tmp_path):
    torch.ones(1 << 22).sum()  # threads of this process must not matter
    recorded = record_script(
        write(tmp_path, HEAD + "dist.all_reduce(x)\nprint(x.sum().item())\n"), world=4, steps=0
    )
    assert (
        recorded.kinds == [[0, 1, 2, 3]] and recorded.rules == "nccl" and recorded.mesh == "world=4"
    )
    assert [(row.kind, row.calls, row.bytes) for row in recorded.traffic] == [("all_reduce", 1, 32)]
    assert "all_reduce" in recorded.text()
    report = recorded.check()
    assert report.sound and "not checked: what buffers hold" in report.text()


def test_a_call_of_one_rank_is_found_at_its_line(tmp_path):
    script = write(
        tmp_path, HEAD + "dist.all_reduce(x)\nif rank == 0:\n    dist.all_reduce(x)  # here\n"
    )
    with pytest.raises(AssertionError, match="train.py:9"):
        assert_same_program(script, world=4, steps=0)


def test_a_missing_wait_names_both_lines(tmp_path):
    body = "work = dist.all_reduce(x, async_op=True)\ny = x + 1\nwork.wait()\n"
    report = record_script(write(tmp_path, HEAD + body), world=2, steps=0).check()
    assert report.codes == ["D730"]
    assert report.findings[0].line == 8 and report.findings[0].notes[0].line == 7
    body = "work = dist.all_reduce(x, async_op=True)\nwork.wait()\ny = x + 1\n"
    assert record_script(write(tmp_path, HEAD + body), world=2, steps=0).check().sound


def test_objects_and_shapes_travel_between_ranks(tmp_path):
    body = (
        "got = [None]\n"
        "if rank == 0:\n    got = [{'width': 24}]\n"
        "dist.broadcast_object_list(got, src=0)\n"
        "dist.all_reduce(torch.ones(got[0]['width'], device='cuda'))\n"
        "if rank == 0:\n    dist.send_object_list([5], dst=1)\n"
        "if rank == 1:\n    box = [None]; dist.recv_object_list(box, src=0); assert box == [5]\n"
    )
    recorded = record_script(write(tmp_path, HEAD + body), world=2, steps=0)
    assert recorded.check().sound
    assert max(row.bytes for row in recorded.traffic if row.kind == "all_reduce") == 96


def test_groups_created_in_a_different_order(tmp_path):
    body = (
        "sets = [[0, 1], [2, 3]]\n"
        "groups = {tuple(s): dist.new_group(s) for s in (sets if rank % 2 else sets[::-1])}\n"
        "dist.all_reduce(x, group=groups[(0, 1) if rank < 2 else (2, 3)])\n"
    )
    recorded = record_script(write(tmp_path, HEAD + body), world=4, steps=0)
    assert (
        recorded.group_errors
        and "train.py:8: process groups are created in a different order"
        in recorded.group_errors[0]
    )


def test_a_script_that_fails_is_named_with_its_line(tmp_path):
    script = write(tmp_path, HEAD + "if rank == 1:\n    raise KeyError('loss')\n")
    with pytest.raises(RecordingError, match=r"rank 1: KeyError: 'loss' at .*train.py:8"):
        record_script(script, world=2, steps=0)
    with pytest.raises(FileNotFoundError):
        record_script("no/such/file.py", world=2)


def test_nothing_is_written(tmp_path):
    checkpoint = tmp_path / "model.pt"
    checkpoint.write_text("precious")
    record_script(write(tmp_path, HEAD + f"torch.save(x, {str(checkpoint)!r})\n"), world=2, steps=0)
    assert checkpoint.read_text() == "precious"


def test_gloo_on_the_cpu(tmp_path):
    text = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "rank, world = dist.get_rank(), dist.get_world_size()\n"
        "assert not torch.cuda.is_available()\n"
        "a, b = torch.zeros(4), torch.zeros(4)\n"
        "works = [dist.isend(a, (rank + 1) % world), dist.irecv(b, (rank - 1) % world)]\n"
        "[work.wait() for work in works]\n"
    )
    recorded = record_script(write(tmp_path, text), world=4, steps=0, devices=False)
    assert recorded.rules == "gloo" and recorded.check().sound


# ---- few ranks that stand for all


@pytest.mark.parametrize("name", ["two_groups", "tp_fsdp2"])
def test_the_plan_of_few_ranks_is_that_of_all(monkeypatch, name):
    script = str(SCRIPTS / f"{name}.py")
    every = record_script(script, world=16, steps=1, all_ranks=True)
    monkeypatch.setattr(_answer, "_MAX_ALL_RANKS", 1)
    few = record_script(script, world=16, steps=1)
    assert few.recorded < every.recorded == 16
    assert few.plan.to_text() == every.plan.to_text() and few.kinds == every.kinds


def test_a_rank_that_is_not_like_its_neighbours_is_recorded(monkeypatch, tmp_path):
    monkeypatch.setattr(_answer, "_MAX_ALL_RANKS", 1)
    body = "dist.all_reduce(x)\nif rank == world - 1:\n    dist.all_reduce(x)\n"
    recorded = record_script(write(tmp_path, HEAD + body), world=32, steps=0)
    assert recorded.kinds == [list(range(31)), [31]]
    assert recorded.check().findings[0].line == 9


# ---- the command


def command(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shiplap", "record", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_command_prints_writes_and_returns(tmp_path):
    plan = tmp_path / "step.plan"
    script = write(tmp_path, HEAD + "dist.all_reduce(x)\n")
    ran = command(
        "-o",
        plan,
        "--steps",
        0,
        "--",
        "torchrun",
        "--nproc_per_node=2",
        "--nnodes",
        2,
        script,
        "--lr",
        1,
    )
    assert ran.returncode == 0, ran.stderr
    assert "4 ranks (all alike)" in ran.stdout and "sound: 4 ranks" in ran.stdout
    assert shiplap.check(str(plan), rules="nccl").sound
    ran = command("--json", "-o", plan, "--steps", 0, "--world", 2, script)
    answer = json.loads(ran.stdout)
    assert (
        answer["schema"] == "shiplap.record/1" and answer["sound"] and answer["kinds"] == [[0, 1]]
    )
    broken = write(tmp_path, HEAD + "if rank: dist.all_reduce(x)\n")
    ran = command("-o", plan, "--steps", 0, "--world", 2, "--", "python", broken)
    assert ran.returncode == 1 and "train.py:7" in ran.stdout


@pytest.mark.parametrize(
    "words", [[], ["--world", 2], ["train.py"], ["--world", 2, "no.py"], ["--world", 0, "x.py"]]
)
def test_wrong_commands_are_told(words):
    ran = command(*words)
    assert ran.returncode == 2 and ran.stderr.startswith("error: "), ran.stderr


# ---- scripts and faults of the corpus


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "tp_fsdp2", "pp_1f1b", "moe"])
def test_healthy_scripts_are_sound(name):
    recorded = assert_same_program(str(SCRIPTS / f"{name}.py"), world=8)
    assert recorded.steps == 2 and recorded.traffic


@pytest.mark.parametrize("name", ["rank0_mean_loss"])
def test_planted_faults_are_found_at_the_line(tmp_path, name):
    fault = FAULTS[name]
    text = (SCRIPTS / fault["script"]).read_text()
    for edit in fault["edits"]:
        assert text.count(edit["old"]) == 1
        text = text.replace(edit["old"], edit["new"])
    wanted = fault["line_of"] if isinstance(fault["line_of"], list) else [fault["line_of"]]
    lines = {
        k for k, line in enumerate(text.splitlines(), 1) if any(part in line for part in wanted)
    }
    report = record_script(write(tmp_path, text), world=fault["world"], steps=0).check()
    assert not report.sound
    assert {finding.line for finding in report.findings} & lines
