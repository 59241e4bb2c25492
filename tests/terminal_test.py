"""Progress of long work on a terminal, and Ctrl-C: the program on a pseudo-terminal."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = os.environ["SHIPLAP_PROGRAM"]
LIMIT = 120  # seconds


def long_plan(folder):
    """A plan that takes a few seconds to check: its ranks are not alike, and loop."""
    path = os.path.join(folder, "long.plan")
    ranks = 2048
    numbers = " ".join(str((7 * k) % ranks) for k in range(ranks))
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"""shiplap-plan 1
mesh dp={ranks}
list order = {numbers}
program all on all
  buffer x rows {ranks} row_bytes 4 f32
  repeat s 1000
    copy x[order[dp] +1] to x[order[dp] +1]
  end
  all_reduce x over dp
""")
    return path


class Terminal:
    """A command whose stderr is a terminal; what it wrote there so far is `screen`."""

    def __init__(self, *arguments):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.PIPE,
                                        stderr=slave, text=True)
        os.close(slave)
        self.screen = ""

    def read(self, seconds):
        ready, _, _ = select.select([self.master], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self.master, 65536)
        except OSError:  # the other end is closed
            return False
        self.screen += data.decode()
        return bool(data)

    def read_until(self, pattern):
        end = time.monotonic() + LIMIT
        while not re.search(pattern, self.screen):
            if time.monotonic() > end or not self.read(0.1):
                raise AssertionError(f"{pattern!r} does not come: {self.screen!r}")

    def finish(self):
        end = time.monotonic() + LIMIT
        while time.monotonic() < end and self.read(0.1):
            pass
        out, _ = self.process.communicate(timeout=LIMIT)
        os.close(self.master)
        return self.process.returncode, out


class TerminalTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.plan = long_plan(self.folder.name)

    def test_long_work_shows_how_far_it_is_and_wipes_it(self):
        terminal = Terminal("check", self.plan)
        code, out = terminal.finish()
        self.assertIn(code, (0, 1), terminal.screen)
        self.assertRegex(terminal.screen, r"expanding ranks  \d+ %  [\d ]+ ranks/s  \d+ s left")
        last = terminal.screen.replace("\r\n", "\n").rsplit("\r\033[K", 1)[-1]
        self.assertNotIn("expanding", last)
        self.assertTrue(out)

    def test_control_c_ends_it_with_a_sentence(self):
        terminal = Terminal("check", self.plan)
        terminal.read_until("expanding ranks")
        terminal.process.send_signal(signal.SIGINT)
        code, out = terminal.finish()
        self.assertEqual(code, 130, terminal.screen)
        self.assertRegex(terminal.screen, r"interrupted while expanding ranks, \d+ % done: "
                                          r"no result\r?\n$")
        self.assertEqual(out, "")

    def test_control_c_ends_what_does_not_look(self):
        read, write = os.pipe()  # a plan from a pipe that nobody writes
        process = subprocess.Popen([PROGRAM, "check", "-"], stdin=read, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        os.close(read)
        time.sleep(0.7)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT)
        os.close(write)
        self.assertEqual(process.returncode, -signal.SIGINT)

    def test_nothing_is_drawn_where_stderr_is_a_file(self):
        done = subprocess.run([PROGRAM, "check", self.plan], capture_output=True, text=True,
                              timeout=LIMIT, check=False)
        self.assertNotIn("expanding", done.stderr)


if __name__ == "__main__":
    sys.exit(unittest.main())
