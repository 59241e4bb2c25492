#!/usr/bin/env python3
"""Tests tools/ranks with programs that need no MPI; smpi needs one and is tested only as far as the
command line. Launchers that are not there are left out; sockets need none.
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RANKS = ROOT / "tools" / "ranks"
TESTBED = ROOT / "tools" / "testbed"
LAUNCHERS = {"openmpi": ROOT / ".deps/main/bin/mpirun", "mpich": ROOT / ".deps/mpich/bin/mpirun"}
THERE = ["sockets", *(kind for kind, path in LAUNCHERS.items() if path.exists())]
SURVIVING = [kind for kind in THERE if kind != "mpich"]  # MPICH ends a job that lost a rank
RANK = "${SHIPLAP_RANK:-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}}"


def clean_environment(**more):
    return {**{key: value for key, value in os.environ.items()
               if not key.startswith("SHIPLAP_")}, **more}


def ranks(*words, timeout=60, **environment):
    return subprocess.run([str(RANKS), *map(str, words)], capture_output=True, text=True,
                          timeout=timeout, check=False, env=clean_environment(**environment))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


class Case(unittest.TestCase):
    def expect(self, done, code, text=""):
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn(text, done.stdout + done.stderr)


class OnOneMachine(Case):
    def test_every_rank_starts_and_nothing_else_is_printed(self):
        for kind in THERE:
            with self.subTest(kind=kind):
                done = ranks("-n", 4, "--on", kind, "sh", "-c", f"echo rank {RANK}")
                self.assertEqual(sorted(done.stdout.splitlines()), [f"rank {n}" for n in range(4)])
                self.assertEqual((done.stderr, done.returncode), ("", 0))

    def test_the_exit_status_is_passed_on(self):
        for kind in THERE:
            with self.subTest(kind=kind):
                script = f"test {RANK} -ne 1 || exit 7"
                self.assertEqual(ranks("-n", 2, "--on", kind, "sh", "-c", script).returncode, 7)

    def test_arguments_arrive_as_they_are(self):
        for kind in THERE:
            with self.subTest(kind=kind):
                done = ranks("-n", 1, "--on", kind, "printf", "%s|", "a b", "$HOME", "", "-n")
                self.assertEqual(done.stdout, "a b|$HOME||-n|")

    @unittest.skipUnless("openmpi" in THERE, "Open MPI is missing")
    def test_a_rank_that_reads_finds_nothing(self):
        self.expect(ranks("-n", 2, "--timeout", 10, "cat"), 0)

    def test_out_of_time_ends_even_a_stopped_rank(self):
        for kind in THERE:
            with self.subTest(kind=kind), tempfile.TemporaryDirectory() as folder:
                # The second rank also leaves the process group, as a daemon does.
                script = (f"test {RANK} -eq 0 && echo $$ > {folder}/0 && kill -STOP $$; "
                          f"exec setsid sh -c 'echo $$ > {folder}/1; exec sleep 60'")
                begin = time.monotonic()
                done = ranks("-n", 2, "--on", kind, "--timeout", 2, "sh", "-c", script)
                self.expect(done, 124, "took longer than 2 s")
                self.assertLess(time.monotonic() - begin, 10)
                pids = [int(Path(folder, name).read_text()) for name in "01"]
                self.assertEqual([pid for pid in pids if alive(pid)], [])

    def test_what_outlives_a_good_end_is_ended(self):
        # Not with MPICH: its launcher waits for whoever holds a rank's connection to it.
        for kind in SURVIVING:
            with self.subTest(kind=kind), tempfile.TemporaryDirectory() as folder:
                script = (f"setsid sh -c 'echo $$ > {folder}/pid; exec sleep 60' "
                          "< /dev/null > /dev/null 2>&1 & "
                          f"while ! test -s {folder}/pid; do sleep 0.05; done")
                self.expect(ranks("-n", 1, "--on", kind, "sh", "-c", script), 0,
                            "ended 1 process that")
                self.assertFalse(alive(int(Path(folder, "pid").read_text())))

    def start(self, kind, folder):
        """tools/ranks with three ranks that sleep, and the processes of those."""
        process = subprocess.Popen(
            [str(RANKS), "-n", "3", "--on", kind, "sh", "-c",
             f"echo $$ > {folder}/{RANK}; exec sleep 60"],
            env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        files = [Path(folder, str(rank)) for rank in range(3)]
        self.assertTrue(wait_until(
            lambda: all(file.exists() and file.read_text() for file in files)))
        return process, [int(file.read_text()) for file in files]

    def test_a_signal_to_us_ends_the_job(self):
        for kind in THERE:
            with self.subTest(kind=kind), tempfile.TemporaryDirectory() as folder:
                process, pids = self.start(kind, folder)
                process.terminate()
                self.assertEqual(process.wait(15), 128 + signal.SIGTERM)
                self.assertFalse(any(map(alive, pids)))

    def test_a_kill_of_us_ends_the_job(self):
        for kind in THERE:
            with self.subTest(kind=kind), tempfile.TemporaryDirectory() as folder:
                process, pids = self.start(kind, folder)
                process.kill()
                process.wait()
                self.assertTrue(wait_until(lambda: not any(map(alive, pids))))

    def test_a_crash_is_a_failure_unless_the_job_is_to_survive_it(self):
        script = f"test {RANK} -ne 1 || kill -SEGV $$"
        for kind in SURVIVING:
            with self.subTest(kind=kind):
                self.expect(ranks("-n", 2, "--on", kind, "sh", "-c", script),
                            128 + signal.SIGSEGV, "rank 1 was ended by SIGSEGV")
                self.expect(ranks("-n", 2, "--on", kind, "--survive", "sh", "-c", script), 0)

    def test_survivors_that_wait_for_the_dead_are_ended(self):
        script = f"test {RANK} -ne 1 || kill -KILL $$; exec sleep 60"
        for kind in SURVIVING:
            with self.subTest(kind=kind):
                self.expect(ranks("-n", 2, "--on", kind, "sh", "-c", script),
                            128 + signal.SIGKILL, "the survivors did not end")

    def test_a_large_exit_status_is_no_signal(self):
        for kind in SURVIVING:
            with self.subTest(kind=kind):
                self.assertEqual(ranks("-n", 1, "--on", kind, "sh", "-c", "exit 200").returncode,
                                 200)

    def test_sockets_know_where_they_meet(self):
        script = "echo $SHIPLAP_RANK of $SHIPLAP_WORLD_SIZE at $SHIPLAP_SOCKETS"
        lines = ranks("-n", 3, "--on", "sockets", "sh", "-c", script).stdout.splitlines()
        places = {line.split()[4] for line in lines}
        self.assertEqual(sorted(line.split()[0] for line in lines), ["0", "1", "2"])
        self.assertEqual(len(places), 1)
        self.assertRegex(places.pop(), r"^127\.0\.0\.1:\d+$")


class OnHosts(Case):
    KINDS = {"hosts": "openmpi", "socket-hosts": "sockets"}  # what each needs

    def setUp(self):
        self.there = [kind for kind, needed in self.KINDS.items() if needed in THERE]
        probe = subprocess.run([str(TESTBED), "run", "--hosts", "2", "--", "true"],
                               capture_output=True, text=True, check=False,
                               env=clean_environment())
        if probe.returncode == 3:
            self.skipTest(probe.stderr.strip())

    def test_every_rank_has_its_host(self):
        for kind in self.there:
            with self.subTest(kind=kind):
                done = ranks("-n", 3, "--on", kind, "--rate", "200mbit", "hostname")
                self.expect(done, 0, "3 hosts at 200 Mbit/s; measured")
                self.assertEqual(sorted(done.stdout.split()), ["h0", "h1", "h2"])

    def test_more_ranks_than_hosts_are_spread_in_blocks(self):
        for kind in self.there:
            with self.subTest(kind=kind):
                done = ranks("-n", 3, "--on", kind, "--hosts", 2, "sh", "-c",
                             f"echo {RANK} `hostname`")
                self.assertEqual(sorted(done.stdout.splitlines()), ["0 h0", "1 h0", "2 h1"])

    def test_a_testbed_around_us_is_used_and_the_status_passed_on(self):
        for kind in self.there:
            with self.subTest(kind=kind):
                done = subprocess.run(
                    [str(TESTBED), "run", "--hosts", "2", "--", str(RANKS), "-n", "2", "--on", kind,
                     "sh", "-c", "echo $SHIPLAP_TESTBED; exit 9"], capture_output=True, text=True,
                    timeout=60, check=False, env=clean_environment())
                self.assertEqual(done.returncode, 9, done.stderr)
                self.assertEqual(done.stderr.count("measured"), 1)
                self.assertEqual(len(set(done.stdout.split())), 1)

    def test_out_of_time_leaves_neither_ranks_nor_hosts(self):
        for kind in self.there:
            with self.subTest(kind=kind), tempfile.TemporaryDirectory() as folder:
                done = ranks("-n", 2, "--on", kind, "--timeout", 5, "sh", "-c",
                             f"echo $$ > {folder}/`hostname`; echo $SHIPLAP_TESTBED; kill -STOP $$")
                self.expect(done, 124, "took longer than 5 s")
                pids = [int(Path(folder, host).read_text()) for host in ("h0", "h1")]
                self.assertEqual([pid for pid in pids if alive(pid)], [])
                name = done.stdout.split()[0]
                self.assertEqual(list(Path("/run/netns").glob(f"shiplap-{name}-*")), [])


class Usage(Case):
    def words(self, *given, **environment):
        done = ranks(*given, "--dry-run", "true", **environment)
        if done.returncode == 3:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 0, done.stderr)
        return shlex.split(done.stdout)

    def test_dry_run_shows_open_mpi(self):
        words = self.words("-n", 64)
        self.assertIn("--with-ft ulfm", " ".join(words))
        self.assertIn("--mca btl sm,self --mca mpi_yield_when_idle 1", " ".join(words))
        self.assertNotIn("mpi_yield_when_idle", self.words("-n", 1))
        self.assertIn("--mca btl tcp,self", " ".join(self.words("-n", 2, "--on", "openmpi-tcp")))

    def test_dry_run_shows_sockets(self):
        words = self.words("-n", 2, "--on", "sockets")
        self.assertEqual(words[0], "env")
        self.assertIn("SHIPLAP_WORLD_SIZE=2", words)
        self.assertIn("SHIPLAP_RANK=1", words[-1])
        inside = self.words("-n", 2, "--on", "socket-hosts", "--hosts", 2)
        self.assertIn("run --hosts 2 --rate 1gbit --", " ".join(inside))
        self.assertIn("exec h1 --", inside[-1])

    def test_dry_run_shows_mpich(self):
        words = self.words("-n", 2, "--on", "mpich")
        self.assertEqual(words[1:3], ["-n", "2"])
        self.assertEqual(words[3:5], ["sh", "-c"])  # to know which rank died first

    def test_dry_run_shows_smpi(self):
        words = self.words("-n", 256, "--on", "smpi")
        self.assertIn("-np 256", " ".join(words))
        self.assertIn("--cfg=smpi/privatization:dlopen", words)

    def test_dry_run_shows_hosts(self):
        text = " ".join(self.words("-n", 5, "--on", "hosts", "--hosts", 2, "--rate", "200mbit"))
        self.assertIn("testbed run --hosts 2 --rate 200mbit -- ", text)
        self.assertIn("testbed exec h0 -- ", text)
        self.assertIn("--host h0:3,h1:2", text)
        inside = " ".join(self.words("-n", 2, "--on", "hosts", SHIPLAP_TESTBED="x",
                                     SHIPLAP_TESTBED_HOSTS="4"))
        self.assertNotIn("testbed run", inside)
        self.assertIn("--host h0:1,h1:1 ", inside)

    def test_what_is_wrong_is_said(self):
        for words, text in (
                (["true"], "required: -n"),
                (["-n", 0, "true"], "found '0', expected 1 to 4096"),
                (["-n", 2], "there is no program to start"),
                (["-n", 2, "nosuchprogram"], "there is no program nosuchprogram"),
                (["-n", 2, "--on", "paper", "true"], "invalid choice: 'paper'"),
                (["-n", 2, "--timeout", "soon", "true"], "found 'soon', expected a number"),
                (["-n", 2, "--hosts", 2, "true"], "mean nothing on openmpi"),
                (["-n", 2, "--on", "mpich", "--survive", "true"], "means nothing on mpich"),
                (["-n", 2, "--on", "hosts", "--rate", "fast", "true"], "found 'fast', expected")):
            with self.subTest(words=words):
                done = ranks(*words)
                self.expect(done, 2, text)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.expect(ranks("-n", 2, "--on", "hosts", "--hosts", 2, "true", SHIPLAP_TESTBED="x"), 2,
                    "leave them out")

    def test_a_missing_launcher_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "tools", "ranks")
            script.parent.mkdir()
            script.write_text(RANKS.read_text())
            for kind, name in (("openmpi", "Open MPI"), ("mpich", "MPICH"), ("smpi", "SimGrid")):
                done = subprocess.run([sys.executable, str(script), "-n", "2", "--on", kind,
                                       "/bin/true"], env={"PATH": ""}, capture_output=True,
                                      text=True, check=False)
                self.expect(done, 3, f"{name} is missing; run tools/setup")


if __name__ == "__main__":
    unittest.main()
