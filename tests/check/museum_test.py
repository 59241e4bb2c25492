#!/usr/bin/env python3
"""The museum: plans of public bugs, each with the diagnosis that it must get, and the cured plan,
which must be sound.

museum/museum.json says what is expected: the code (any of those listed), rank and operation of the
first finding, whether eager sends hide it, and a phrase that its words must contain. An operation
of -1 is none in particular: a goal, or a call that is missing. What is marked `"warning"` may
happen and need not: such a plan is sound, with advice. Run by ctest, which sets SHIPLAP_PROGRAM.
"""

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MUSEUM = ROOT / "museum"
PROGRAM = os.environ.get("SHIPLAP_PROGRAM", "")
EXHIBITS = json.loads((MUSEUM / "museum.json").read_text(encoding="utf-8"))["exhibits"]


def check(name):
    """The exit code of `shiplap check` and its report."""
    path = MUSEUM / f"{name}.plan"
    done = subprocess.run([PROGRAM, "check", path, "--json"], capture_output=True, text=True,
                          check=False, timeout=60)
    if done.returncode not in (0, 1):
        raise AssertionError(f"{name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.returncode, json.loads(done.stdout)


def words(finding):
    """All that a finding says, as one text."""
    notes = [note if isinstance(note, str) else json.dumps(note)
             for note in finding.get("notes", [])]
    return "\n".join([finding.get(part) or "" for part in ("what", "why", "help")] + notes)


def place(finding):
    """Rank, index of the operation, and its name as the finding writes it: "b[1]", "send"."""
    operation = finding.get("operation")
    written = finding.get("where", {}).get("operation", "")
    # A goal, or a call that is missing, has words in the place of a name; they are not compared.
    name = written.split(":")[0] if operation not in (None, -1) else ""
    return finding.get("rank"), -1 if operation is None else operation, name


class Museum(unittest.TestCase):
    maxDiff = None

    def test_every_plan_is_an_exhibit_with_a_cure(self):
        names = {exhibit["name"] for exhibit in EXHIBITS}
        self.assertEqual({path.name for path in MUSEUM.glob("*.plan")},
                         {name + end for name in names for end in (".plan", ".fixed.plan")})

    def test_every_exhibit_names_its_thread_and_has_its_place_on_the_page(self):
        page = (ROOT / "docs" / "museum.md").read_text(encoding="utf-8")
        for exhibit in EXHIBITS:
            with self.subTest(exhibit["name"]):
                text = (MUSEUM / f"{exhibit['name']}.plan").read_text(encoding="utf-8")
                self.assertIn(exhibit["thread"], text.splitlines()[0])
                self.assertIn(exhibit["thread"], page)
                self.assertIn(f"museum/{exhibit['name']}.plan", page)

    def test_what_may_happen_gets_a_warning(self):
        for exhibit in EXHIBITS:
            if not exhibit.get("warning"):
                continue
            with self.subTest(exhibit["name"]):
                code, report = check(exhibit["name"])
                self.assertEqual((code, report["sound"], report["findings"]), (0, True, []))
                codes = {warning["code"] for warning in report["advice"]}
                self.assertEqual(codes, set(exhibit["codes"]))
                self.assertIn(exhibit["phrase"], words(report["advice"][0]))

    def test_every_bug_gets_its_diagnosis(self):
        for exhibit in EXHIBITS:
            if exhibit.get("warning"):
                continue
            with self.subTest(exhibit["name"]):
                code, report = check(exhibit["name"])
                self.assertEqual((code, report["schema"], report["sound"]),
                                 (1, "shiplap.check/1", False))
                self.assertTrue(report["findings"])
                first = report["findings"][0]
                self.assertIn(first["code"], exhibit["codes"], words(first))
                self.assertEqual(first["severity"], "error")
                self.assertEqual(
                    place(first),
                    (exhibit["rank"], exhibit["operation"], exhibit["operation_name"]))
                self.assertEqual(first["only_rendezvous"], exhibit["passes_eager"])
                self.assertIn(exhibit["phrase"], words(first))

    def test_every_cure_is_sound(self):
        for exhibit in EXHIBITS:
            with self.subTest(exhibit["name"]):
                code, report = check(exhibit["name"] + ".fixed")
                self.assertEqual((code, report["schema"], report["sound"], report["findings"]),
                                 (0, "shiplap.check/1", True, []))
                codes = {warning["code"] for warning in report["advice"]}
                self.assertFalse(codes & set(exhibit["codes"]), codes)


if __name__ == "__main__":
    if not PROGRAM:
        sys.exit("set SHIPLAP_PROGRAM to the program to test")
    unittest.main(verbosity=2)
