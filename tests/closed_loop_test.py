#!/usr/bin/env python3
"""Runs bench/closed_loop.py on processes of this host: whether all of it works, not how well."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("SHIPLAP_PROGRAM", str(ROOT / "build/release/bin/shiplap"))


class ClosedLoop(unittest.TestCase):
    def test_predicts_and_measures_every_strategy(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, ROOT / "bench/closed_loop.py", "--on", "sockets", "--rounds", "1",
                 "--steps", "1", "--shiplap", PROGRAM, "--keep", folder],
                capture_output=True, text=True, timeout=240, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            result = json.loads(done.stdout)
            self.assertEqual(set(result["strategies"]),
                             {"ddp", "ddp_overlap", "fsdp", "1f1b", "tensor_parallel"})
            worst = max(abs(row["error"]) for row in result["strategies"].values())
            self.assertEqual(result["closed_loop_worst_error"], worst)
            for row in result["strategies"].values():
                self.assertGreater(row["predicted_s"], 0)
                self.assertLessEqual(row["measured_min_s"], row["measured_s"])
            here = json.loads((Path(folder) / "here.json").read_text())
            self.assertEqual(here, result["machine"])
            self.assertEqual(here["networks"][0]["kind"], "sockets on a host")
            self.assertEqual(here["networks"][0]["basis"]["fitted"][0], "bandwidth")


if __name__ == "__main__":
    unittest.main()
