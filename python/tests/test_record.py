"""shiplap.record: healthy scripts are sound, and planted faults are found at the user's line.

The scripts in record/ and the faults in record/faults.json were written by someone who had not read
the recorder. Here a few of them run; bench/python/record.py runs all.
"""

import json
import pathlib
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import shiplap  # noqa: E402
from planted import SCRIPTS, faults, plant  # noqa: E402
from shiplap.record import (
    RecordingError,
    assert_same_program,
    record_function,
    record_script,
)  # noqa: E402
from shiplap.record import _answer  # noqa: E402
from shiplap.record._mesh import Mesh, grid_of, spans  # noqa: E402

FAULTS = {fault["name"]: fault for fault in faults()}


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


def test_a_mismatch_names_both_lines(tmp_path):
    body = "if rank == 0:\n    dist.broadcast(x, 0)\nelse:\n    dist.all_reduce(x)\n"
    [finding] = record_script(write(tmp_path, HEAD + body), world=2).check().findings
    assert finding.code == "D703" and {finding.line, finding.notes[0].line} == {8, 10}


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


@pytest.mark.parametrize("mode", ["fake", "gloo"])
def test_autocast_acts_as_on_a_gpu(tmp_path, mode):
    script = write(
        tmp_path,
        HEAD + """
linear = torch.nn.Linear(8, 8).cuda()
with torch.autocast("cuda", dtype=torch.bfloat16):
    y = linear(x)
    for t in (y, torch.softmax(y, -1), torch.nn.functional.layer_norm(y, (8,)), y + y):
        dist.all_reduce(t.detach())
z = linear(x)
dist.all_reduce(z.detach())
(y.sum() + z.sum()).backward()
dist.all_reduce(linear.weight.grad)
""",
    )
    plan = record_script(script, world=2, mode=mode).plan.to_text()
    types = dict(re.findall(r"buffer (\w+) rows .* (\w+)", plan))
    calls = [types[name] for name in re.findall(r"all_reduce (\w+)", plan)]
    assert calls == ["bf16", "f32", "f32", "bf16", "f32", "f32"], plan


def all_reduce_twice(elements, skip):
    """For test_a_function_is_recorded."""
    import torch.distributed as dist

    dist.init_process_group("nccl")
    for _ in range(2):
        if dist.get_rank() != skip:
            dist.all_reduce(torch.ones(elements, device="cuda"))


def test_a_function_is_recorded():
    recorded = assert_same_program(all_reduce_twice, [8, None], world=2)
    assert [(row.calls, row.bytes) for row in recorded.traffic] == [(2, 64)]
    with pytest.raises(AssertionError, match="all_reduce_twice on 2 ranks\n.*D701"):
        assert_same_program(all_reduce_twice, [8, 1], world=2)
    with pytest.raises(ValueError, match="not a function of a module"):
        record_function(lambda: None, world=2)


def test_errors_that_are_accepted(tmp_path):
    script = write(
        tmp_path,
        HEAD + """if rank == 0: dist.send(torch.ones(2, device="cuda", dtype=torch.int32), 1)
else: dist.recv(torch.ones(2, device="cuda"), 0)
""",
    )
    strict = command("--world", 2, "-o", tmp_path / "p", script)
    assert strict.returncode == 1 and "sends i32" in strict.stdout
    lenient = command("--world", 2, "--allow", "D716", "-o", tmp_path / "p", script)
    assert lenient.returncode == 0 and "sound except for D716" in lenient.stdout


def test_a_cuda_graph_communicates_when_it_is_replayed(tmp_path):
    script = write(
        tmp_path,
        HEAD + """
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    dist.all_reduce(x)
dist.barrier()
for _ in range(3 if rank == 0 else 2):
    graph.replay()
""",
    )
    finding = record_script(script, world=2).check().findings[0]
    assert "rank 1 does not make call 3" in str(finding)  # after the barrier, 0
    with pytest.raises(RecordingError, match="CUDA graphs cannot be executed on the CPU"):
        record_script(script, world=2, mode="gloo")


def test_results_that_torch_waits_for(tmp_path):
    """The result of a functional collective is waited for when another one takes it."""
    script = write(
        tmp_path,
        HEAD + """
import torch.distributed._functional_collectives as funcol
y = funcol.all_gather_tensor(x, 0, dist.group.WORLD)
z = funcol.all_reduce(y, "sum", dist.group.WORLD)
print(z + 1)
""",
    )
    assert record_script(script, world=2).check().sound


# ---- real ranks


@pytest.mark.parametrize("name", ["ddp", "tp_fsdp2", "pp_1f1b"])
def test_fake_ranks_do_what_real_ones_do(name):
    """Real tensors, real processes, gloo: the plan is the same to the letter."""
    fake, real = (
        record_script(str(SCRIPTS / f"{name}.py"), world=8, steps=0, mode=mode)
        for mode in ("fake", "gloo")
    )
    assert real.incomplete == {}
    assert real.plan.to_text() == fake.plan.to_text()


def test_real_values_decide(tmp_path):
    script = write(
        tmp_path,
        HEAD + """torch.manual_seed(rank)
if torch.rand(4, device="cuda").sum().item() > 1.9:  # 1.5 on rank 0, 2.2 and 2.1
    dist.all_reduce(x)
dist.barrier()
""",
    )
    assert record_script(script, world=3).check().sound  # one stand-in on all ranks, and a note
    recorded = record_script(script, world=3, mode="gloo", timeout=3)
    assert set(recorded.incomplete) == {0, 1, 2}
    assert "barrier at " in recorded.incomplete[0] and "train.py:10" in recorded.incomplete[0]
    assert [finding.code for finding in recorded.check().findings] == ["D701"]


def test_a_process_that_dies_is_a_result(tmp_path):
    script = write(
        tmp_path, HEAD + "dist.all_reduce(x)\nif rank == 1: os.abort()\ndist.barrier()\n"
    )
    recorded = record_script(script, world=2, mode="gloo", timeout=5)
    assert "all_reduce" in recorded.incomplete[1] and "code -6" in recorded.incomplete[1]
    assert "barrier at " in recorded.incomplete[0]


def test_real_calls_give_what_torch_says(tmp_path):
    """Each kind of call, checked by the script itself."""
    script = write(
        tmp_path,
        HEAD + """
def same(a, b): assert torch.equal(a.cpu(), torch.as_tensor(b).to(a.dtype)), (a, b)
mine = torch.arange(4, dtype=torch.bfloat16, device="cuda") + rank
y = mine.clone(); dist.all_reduce(y, op=dist.ReduceOp.AVG); same(y, torch.arange(4) + 0.5)
y = torch.tensor([rank == 0], device="cuda")
dist.all_reduce(y, op=dist.ReduceOp.MAX); same(y, [True])
y = mine.clone(); dist.broadcast(y, 1); same(y, torch.arange(4) + 1)
y = torch.empty(8, dtype=torch.bfloat16, device="cuda"); dist.all_gather_into_tensor(y, mine)
same(y, torch.cat([torch.arange(4), torch.arange(4) + 1]))
y = torch.empty(2, dtype=torch.bfloat16, device="cuda"); dist.reduce_scatter_tensor(y, mine)
same(y, [1, 3] if rank == 0 else [5, 7])
y = torch.empty(3, device="cuda") if rank == 0 else torch.empty(5, device="cuda")
z = torch.arange(4., device="cuda") + 10 * rank
dist.all_to_all_single(y, z, [1, 2] if rank == 0 else [3, 2], [1, 3] if rank == 0 else [2, 2])
same(y, [0, 10, 11] if rank == 0 else [1, 2, 3, 12, 13])
parts = [torch.empty(2 + r, device="cuda") for r in range(2)]
dist.all_gather(parts, torch.full((2 + rank,), float(rank), device="cuda"))
same(parts[1], [1, 1, 1])
y = torch.empty(2, 2, device="cuda").t()
if rank == 0: dist.send(torch.tensor([[1., 2], [3, 4]], device="cuda").t(), 1)
else: dist.recv(y, 0); same(y, [[1, 3], [2, 4]])
y = torch.zeros(2, device="cuda")
pieces = [torch.full((2,), r + 1.0, device="cuda") for r in range(2)] if rank == 0 else None
dist.scatter(y, pieces, 0)
same(y, [rank + 1.0] * 2)
got = [torch.zeros(2, device="cuda") for _ in range(2)] if rank == 0 else None
dist.gather(y, got, 0)
if rank == 0: same(got[1], [2, 2])
dist.reduce(y, 1)
if rank == 1: same(y, [3, 3])
both = [None, None]; dist.all_gather_object(both, {"rank": rank}); assert both[1] == {"rank": 1}
work = dist.all_reduce(y, async_op=True); work.wait(); y.add_(1); torch.cuda.synchronize()
assert y.device == torch.device("cuda", rank), y.device
print("all as expected")
""",
    )
    recorded = record_script(script, world=2, mode="gloo", timeout=10)
    assert recorded.incomplete == {}
    assert recorded.check().sound


def test_exact_repetitions_are_loops(tmp_path):
    body = "for _ in range(50):\n    dist.all_reduce(x)\n    dist.broadcast(x, 0)\n"
    plan = record_script(write(tmp_path, HEAD + body), world=2).plan
    text = plan.to_text()
    assert "repeat again0 50" in text and text.count("all_reduce") == 1, text
    assert shiplap.check(plan, rules="nccl").sound
    short = body.replace("range(50)", "range(50 if rank == 0 else 49)")
    findings = record_script(write(tmp_path, HEAD + short), world=2).check().findings
    assert "rank 1 does not make call 98" in str(findings[0])


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


def test_a_rank_whose_message_is_needed_is_recorded(monkeypatch, tmp_path):
    """Rank 0 cannot be recorded alone: it needs an object of the next pipeline stage."""
    monkeypatch.setattr(_answer, "_MAX_ALL_RANKS", 1)
    body = """
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cuda", (2, 16), mesh_dim_names=("pp", "dp"))
pp, dp = mesh.get_group("pp"), mesh.get_group("dp")
what = [{"shape": (4, 4)} if rank >= 16 else None]
if rank < 16:
    dist.recv_object_list(what, rank + 16, group=pp)
else:
    dist.send_object_list(what, rank - 16, group=pp)
dist.all_reduce(torch.ones(what[0]["shape"], device="cuda"), group=dp)
"""
    recorded = record_script(write(tmp_path, HEAD + body), world=32, steps=0)
    assert recorded.check().sound and recorded.recorded < 16
    assert recorded.kinds == [list(range(16)), list(range(16, 32))]


# ---- the command


def test_the_question_of_the_front_page(tmp_path, monkeypatch):
    root = pathlib.Path(__file__).resolve().parents[2]
    page = (root / "README.md").read_text()
    [(words, answer)] = re.findall(r"`shiplap record ([^`]*)` \| `([^`]*)`", page)
    monkeypatch.chdir(root)
    done = command("-o", tmp_path / "train.plan", *words.split())
    assert done.returncode == 1 and answer in done.stdout, done.stderr


def test_a_module_is_recorded(tmp_path, monkeypatch):
    write(tmp_path, HEAD + "import sys\nassert sys.argv[1:] == ['--fast']\ndist.all_reduce(x)\n")
    monkeypatch.chdir(tmp_path)
    for words in (
        ["--world", 2, "--", "python", "-m", "train", "--fast"],
        ["torchrun", "--nproc-per-node=2", "-m", "train", "--fast"],
    ):
        done = command(*words)
        assert done.returncode == 0 and "train: 2 ranks (all alike)" in done.stdout, done.stderr
    words = [sys.executable, "-m", "shiplap", "simulate", "train.plan"]
    simulated = subprocess.run(words, capture_output=True, text=True)
    assert "recorded: communication alone" in simulated.stdout, simulated.stderr


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


def test_the_program_lists_the_flags_of_the_package():
    """The program hands `record` on to Python; its help is its own."""
    program, package = (
        subprocess.run([sys.executable, "-m", *words, "--help"], capture_output=True, text=True)
        for words in (["shiplap", "record"], ["shiplap.record"])
    )
    flags = [set(re.findall(r"--[a-z-]+", text.stdout)) for text in (program, package)]
    assert flags[0] - {"--color", "--layers", "--nproc-per-node"} == flags[1] - {
        "--layers",
        "--nproc-per-node",
    }


def test_the_program_without_the_package(tmp_path):
    """D009 names the interpreter that was asked."""
    program = pathlib.Path(shiplap.__file__).parent / "bin" / "shiplap"
    empty = tmp_path / "python"
    empty.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')  # no packages
    empty.chmod(0o755)
    for interpreter, what in ((tmp_path / "none", "cannot start"), (empty, "has no package")):
        done = subprocess.run(
            [program, "record", "--world", "2", "train.py"],
            env={"SHIPLAP_PYTHON": str(interpreter)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 3
        assert "error[D009]" in done.stderr and what in done.stderr, done.stderr
        assert str(interpreter) in done.stderr


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
    script, lines = plant(fault, tmp_path)
    report = record_script(str(script), world=fault["world"], steps=0).check()
    assert not report.sound
    assert {finding.line for finding in report.findings} & lines
