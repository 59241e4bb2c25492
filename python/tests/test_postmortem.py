"""postmortem in Python: files, contents, plans of the same scripts, and a live job."""

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
import shiplap


def jobs(root):
    return root / "data/hung_jobs/real"


def test_files_and_contents_give_the_same_answer(root):
    folder = jobs(root) / "skips_operation/dumps"
    of_files = shiplap.postmortem(folder)
    assert of_files.found_culprit and of_files.status == "hung"
    first = of_files.suspects[0]
    assert first.ranks == [2] and first.fault == "divergence" and first.confidence > 0.9
    assert first.at.line.endswith("skips_operation.py:25") and first.at.function == "log_loss"
    assert first.expected.operation == "all_reduce"
    contents = {rank: (folder / f"rank_{rank}.pkl").read_bytes() for rank in range(4)}
    for dumps in (contents, dict(reversed(contents.items())), [str(folder)]):
        answer = shiplap.postmortem(dumps)
        assert answer.to_dict()["suspects"] == of_files.to_dict()["suspects"]


def test_json_and_stacks_by_rank(root):
    job = jobs(root) / "data_loader_sleeps"
    contents = {rank: [(job / f"json/rank_{rank}.json").read_text(),
                       (job / f"stacks/rank_{rank}.stacks.txt").read_text()] for rank in range(8)}
    answer = shiplap.postmortem(contents, hung="nobody moves")
    assert answer.proof == ["nobody moves"]
    assert answer.suspects[0].ranks == [6]
    assert answer.suspects[0].at.line == "data_loader_sleeps.py:12"


def test_an_absent_rank_is_known_by_the_world(root):
    folder = jobs(root) / "skips_operation/dumps"
    contents = {rank: (folder / f"rank_{rank}.pkl").read_bytes() for rank in (0, 1)}
    assert shiplap.postmortem(contents, world=4).absent == [2, 3]


def test_a_report(root, tmp_path):
    answer = shiplap.postmortem(jobs(root) / "skips_operation/dumps")
    answer.save_report(tmp_path / "hang.html")
    assert "skips_operation.py" in (tmp_path / "hang.html").read_text()
    assert str(answer).startswith("rank 2 called reduce")


def test_what_is_no_dump_is_refused(tmp_path):
    (tmp_path / "rank_0").write_bytes(b"\x80\x02cos\nsystem\n.")
    with pytest.raises(shiplap.InputError, match="would execute code"):
        shiplap.postmortem(tmp_path)
    with pytest.raises(shiplap.InputError, match="no flight recorder dump"):
        shiplap.postmortem({})


# The script without its fault is what was meant: its plan says where the rank left it.
PLANNED = {
    "skips_operation": (4, 2, "rank 2 skips operation 10, all_reduce of 16384 bytes"),
    "wrong_order": (8, 5, "rank 5 skips operation 12, all_reduce of 128 bytes"),
    "save_on_rank_0": (4, 0, "rank 0 makes a call that is not in the plan before operation 11"),
    "data_loader_sleeps": (8, 6, "rank 6 should be in operation 16, broadcast of 1024 bytes"),
}


@pytest.mark.parametrize("name", PLANNED)
def test_a_recorded_plan_says_where_a_rank_should_be(root, tmp_path, name):
    record = pytest.importorskip("shiplap.record")
    world, culprit, expected = PLANNED[name]
    script = (jobs(root) / f"jobs/{name}.py").read_text()
    healthy, changes = re.subn(r"rank == \d( and step == \d+)?", "False", script)
    assert changes == 1
    (tmp_path / f"{name}.py").write_text(healthy)
    plan = record.record_script(tmp_path / f"{name}.py", world=world, steps=0).plan
    assert shiplap.check(plan).sound
    answer = shiplap.postmortem(jobs(root) / name / "dumps", plan=plan, hung=True)
    first = answer.suspects[0]
    assert first.ranks == [culprit]
    assert first.by_plan.startswith(expected)
    planned = next(p for p in answer.to_dict()["planned"] if p["rank"] == culprit)
    assert planned["fit"] > 0.5 and planned["next"]["frame"]["file"].endswith(f"/{name}.py")


LIVE = """
import sys, time
import torch, torch.distributed as dist
from shiplap.debug_server import PostmortemHandler
from torch.distributed.debug import start_debug_server
from torch.distributed.debug._debug_handlers import default_handlers


def load_batch(rank, step):
    if rank == 1 and step == 3:
        time.sleep(60)
    return torch.ones(4)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    handlers = [*default_handlers(), PostmortemHandler(still=0.5)]
    start_debug_server(port=int(sys.argv[1]), handlers=handlers)
    for step in range(5):
        dist.all_reduce(load_batch(rank, step))


if __name__ == "__main__":
    main()
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def test_a_live_job_by_the_debug_server_of_torch(tmp_path):
    pytest.importorskip("shiplap.debug_server")
    (tmp_path / "live.py").write_text(LIVE)
    server, master = free_ports(2)
    ranks = [
        subprocess.Popen(
            [sys.executable, tmp_path / "live.py", str(server)],
            env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(master),
                 "WORLD_SIZE": "2", "RANK": str(rank)},
            start_new_session=True)
        for rank in (0, 1)
    ]
    try:
        page = ""
        for _ in range(60):
            time.sleep(0.5)
            try:
                page = get(f"http://localhost:{server}/postmortem")
            except OSError:
                continue
            if "no rank has made a call for 0.5 s" in page:
                break
        assert "rank 1 has not called all_reduce" in page
        assert "look at: live.py:11 in load_batch" in page
        assert "no rank has made a call for 0.5 s" in page
        assert '"shiplap.postmortem/1"' in get(f"http://localhost:{server}/postmortem_json")
        assert "load_batch" in get(f"http://localhost:{server}/postmortem_report")
    finally:
        for rank in ranks:
            os.killpg(rank.pid, 9)
            rank.wait()
