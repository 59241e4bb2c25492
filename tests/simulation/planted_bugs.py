#!/usr/bin/env python3
"""Mutation test of the simulation: plants bugs in a copy of the project, one at a time.

  tests/simulation/planted_bugs.py [--seconds 60] [--json] [--only NAME] COPY

COPY is a folder that is created or updated: the sources of this project with a build of the
simulation. Some of the bugs are real ones of the past; R2, R3 and R7 have the names of the report
that found them. Exits with 1 if one is not found in time.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOCKETS = "src/shiplap/comm/sockets/"

# Name, effect, and replacements: file, old text, new text.
BUGS = [
    ("R2", "two RTS with one id: buffer overflow", [
        (SOCKETS + "endpoint.cc", "if (connection.header.id <= connection.last_rts) {",
         "if (false) {"),
        (SOCKETS + "endpoint.cc",
         "const bool is_new =\n"
         "        connection.cts_sent.emplace(id, RendezvousReceive{.receiving = receiving})"
         ".second;",
         "connection.cts_sent[id].receiving = receiving; const bool is_new = true;")]),
    ("R3", "without descriptors a rank spins past its deadline", [
        (SOCKETS + "socket.cc",
         "    configure(socket);\n  } else {\n    check_exhausted(errno);\n  }",
         "    configure(socket);\n  }"),
        (SOCKETS + "join.cc", "const bool is_timed_out = seconds_now() >= deadline_;",
         "const bool is_timed_out = seconds_now() >= deadline_ && "
         "!wait_ready(listener_, Ready::read, 0);")]),
    ("R7", "a healthy rank is named when a link between two others breaks", [
        ("src/shiplap/comm/monitored_communicator.cc",
         "is_self ? kNobody : failed.culprit", "failed.culprit"),
        ("src/shiplap/comm/monitored_communicator.cc",
         "if (!missing.culprit) detector_.await_culprit(",
         "if (false) detector_.await_culprit(")]),
    ("long frame", "a frame may be longer than what was accepted", [
        (SOCKETS + "endpoint.cc",
         "connection.header.bytes > found->second.receiving->bytes - found->second.received",
         "connection.header.bytes > (std::uint64_t{1} << 40)")]),
    ("short read", "a short read counts as a full read", [
        (SOCKETS + "endpoint.cc", "const std::size_t placed = std::min(bytes, place.size());",
         "const std::size_t placed = place.size() < 40 ? place.size() "
         ": std::min(bytes, place.size());")]),
    ("full buffer", "EAGAIN on a send counts as a broken connection", [
        (SOCKETS + "endpoint.cc", "would_block = errno == EAGAIN || errno == EWOULDBLOCK;",
         "would_block = false;")]),
    ("no linger", "a rank ends before its data is sent", [
        (SOCKETS + "endpoint.cc", "all_ranks());\n  linger();", "all_ranks());")]),
    ("rogue client", "an invalid handshake ends the job", [
        (SOCKETS + "join.cc",
         'reject(fmt::format("{}, which is not a Shiplap rank", where));',
         'throw_bad_peer(self_, "not a Shiplap rank", "");')]),
    ("interrupted", "an interrupted call counts as an error", [
        (SOCKETS + "endpoint.cc", "  mutex_.lock();\n  is_polling_ = false;",
         '  ensure(count >= 0, "epoll waits");\n  mutex_.lock();\n  is_polling_ = false;')]),
    ("late", "a wait ends long after its deadline", [
        (SOCKETS + "socket_communicator.cc", "if (time > deadline) break;",
         "if (time > deadline + 20) break;")]),
    ("ended", "a rank that ended normally is named for not replying", [
        ("src/shiplap/comm/failure_detector.cc",
         "if (rank == rank_ || has_begun || ended_.contains(rank)) continue;",
         "if (rank == rank_ || has_begun) continue;")]),
    ("silent end", "rank 0 ends the rendezvous without a reason", [
        (SOCKETS + "tcp_store.cc", "  send_shutdown();\n}", "}")]),
    ("early work", "ranks begin to work before all have joined", [
        (SOCKETS + "join.cc", "    start_barrier();\n", "")]),
    ("no epoll", "running out of descriptors is reported as an internal error", [
        (SOCKETS + "endpoint.cc", "if (!events.is_open()) check_exhausted(errno);\n", "")]),
    ("frames", "the data of a second frame is placed four bytes too early", [
        (SOCKETS + "endpoint.cc", "  connection.offset = found->second.received;\n",
         "  connection.offset = found->second.received > 0 ? found->second.received - 4 : 0;\n")]),
]


def make_copy(copy: pathlib.Path) -> None:
    copy.mkdir(parents=True, exist_ok=True)
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split()
    for name in names:
        if not (ROOT / name).is_file():
            continue
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if not (copy / name).exists() or (copy / name).read_bytes() != (ROOT / name).read_bytes():
            shutil.copy(ROOT / name, copy / name)
    if (ROOT / ".deps").exists() and not (copy / ".deps").exists():
        (copy / ".deps").symlink_to(ROOT / ".deps")


def build(copy: pathlib.Path) -> None:
    if not (copy / "build/release/build.ninja").exists():
        subprocess.run(["cmake", "--preset", "release"], cwd=copy, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", "--preset", "release", "--target", "tests_simulation"],
                   cwd=copy, check=True, capture_output=True)


def run_simulation(copy: pathlib.Path, seconds: float) -> tuple[bool, float, str]:
    begin = time.monotonic()
    settings = dict(os.environ, SHIPLAP_SIMULATED_FAULTS="100000000", SHIPLAP_SIMULATION_BROKEN="1")
    process = subprocess.Popen(
        [copy / "build/release/bin/tests_simulation", "--gtest_filter=*NoFault*"], env=settings,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    try:
        text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return False, seconds, ""
    took = time.monotonic() - begin
    if process.returncode < 0:
        return True, took, f"it ends with signal {-process.returncode}"
    lines = text.split("Failure\nFailed\n")
    return process.returncode != 0, took, lines[1].splitlines()[0] if len(lines) > 1 else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("copy", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only")
    arguments = parser.parse_args()
    results = []
    for name, wrong, changes in BUGS:
        if arguments.only not in (None, name):
            continue
        make_copy(arguments.copy)
        for path, text, by in changes:
            file = arguments.copy / path
            content = file.read_text()
            if content.count(text) != 1:
                sys.exit(f"{name}: `{text}` is {content.count(text)} times in {path}")
            file.write_text(content.replace(text, by))
        build(arguments.copy)
        found, seconds, how = run_simulation(arguments.copy, arguments.seconds)
        results.append({"bug": name, "found": found, "s": round(seconds, 1), "by": how})
        if not arguments.json:
            verdict = f"found in {seconds:.1f} s: {how}" if found else "NOT FOUND"
            print(f"{name}: {wrong}\n    {verdict}", flush=True)
    make_copy(arguments.copy)
    if arguments.json:
        print(json.dumps({"bugs": results}))
    return 0 if all(result["found"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
