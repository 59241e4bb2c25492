#!/usr/bin/env python3
"""The museum: plans of public bugs, each with the diagnosis that it must get, and the cured plan,
which must be sound.

museum/museum.json says what is expected: the code (any of those listed), rank and operation of the
first finding, whether eager sends hide it, and a phrase that its words must contain. An operation
of -1 is none in particular: a goal, or a call that is missing. What is marked `"warning"` may
happen and need not: such a plan is sound, with advice. Run by ctest, which sets SHIPLAP_PROGRAM.

The fixed plan of an exhibit with `"from"` is what `shiplap plan` writes for that model, these flags
and ranks. The plan of the bug is the same with `"bug"`: what matches `replace` (a regular
expression) becomes `by`, in so many `lines`. `"factor"` is that of the gradient, in these lines.
With --update, the plans of these exhibits are written again, and the places of their findings.
"""

import json
import os
import re
import subprocess
import sys
import unittest
from fractions import Fraction
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MUSEUM = ROOT / "museum"
PROGRAM = os.environ.get("SHIPLAP_PROGRAM", "")
EXHIBITS = json.loads((MUSEUM / "museum.json").read_text(encoding="utf-8"))["exhibits"]
PLANNED = [exhibit for exhibit in EXHIBITS if "from" in exhibit]


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


def planned(exhibit):
    """What `shiplap plan` writes for the flags of an exhibit."""
    source = exhibit["from"]
    done = subprocess.run([PROGRAM, "plan", "--model", source["model"], "--from",
                           source["framework"], source["flags"], "--ranks", str(source["ranks"])],
                          capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    if done.returncode != 0:
        raise AssertionError(f"{exhibit['name']}: {done.stderr}")
    return done.stdout


def plan_text(name):
    return (MUSEUM / f"{name}.plan").read_text(encoding="utf-8")


def opening_comment(name):
    """The comment above the plan of a bug, and the plan."""
    comment, head, plan = plan_text(name).partition("shiplap-plan 1\n")
    return comment, head + plan


def with_bug(exhibit, fixed):
    bug = exhibit["bug"]
    return re.sub(bug["replace"], bug["by"], fixed)


def scale(line):
    found = re.search(r" scale (\d+)/(\d+)", line)
    return Fraction(int(found[1]), int(found[2])) if found else Fraction(1)


def words_of_factor(factor):
    if factor > 1:
        return f"{factor} times too large"
    return f"{1 / factor} times too small"


def with_place(listing, name, found):
    """museum.json with the place of the first finding of an exhibit."""
    rank, operation, operation_name = found
    at = listing.index(f'"name": "{name}"')
    return listing[:at] + re.sub(
        r'"rank": \S+ "operation": \S+ "operation_name": "[^"]*"',
        f'"rank": {rank}, "operation": {operation}, "operation_name": "{operation_name}"',
        listing[at:], count=1)


def update():
    listing = (MUSEUM / "museum.json").read_text(encoding="utf-8")
    for exhibit in PLANNED:
        name = exhibit["name"]
        comment, _ = opening_comment(name)
        fixed = planned(exhibit)
        (MUSEUM / f"{name}.fixed.plan").write_text(fixed, encoding="utf-8")
        (MUSEUM / f"{name}.plan").write_text(comment + with_bug(exhibit, fixed), encoding="utf-8")
        listing = with_place(listing, name, place(check(name)[1]["findings"][0]))
    (MUSEUM / "museum.json").write_text(listing, encoding="utf-8")


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

    def test_a_fixed_plan_is_what_the_flags_give(self):
        self.assertGreaterEqual(len(PLANNED), 11)
        for exhibit in PLANNED:
            with self.subTest(exhibit["name"]):
                self.assertEqual(plan_text(exhibit["name"] + ".fixed"), planned(exhibit))

    def test_a_bug_is_in_the_stated_lines_and_in_no_others(self):
        for exhibit in PLANNED:
            with self.subTest(exhibit["name"]):
                fixed = plan_text(exhibit["name"] + ".fixed")
                _, wrong = opening_comment(exhibit["name"])
                self.assertEqual(with_bug(exhibit, fixed), wrong)
                pairs = list(zip(fixed.splitlines(), wrong.splitlines(), strict=True))
                changed = [(was, now) for was, now in pairs if was != now]
                self.assertEqual(len(changed), exhibit["bug"]["lines"])
                if "factor" not in exhibit:
                    continue
                factor = Fraction(exhibit["factor"])
                self.assertEqual({scale(now) / scale(was) for was, now in changed}, {factor})
                self.assertEqual(exhibit["phrase"], words_of_factor(factor))

    def test_the_page_has_the_flags_of_a_planned_exhibit(self):
        page = " ".join((ROOT / "docs" / "museum.md").read_text(encoding="utf-8").split())
        for exhibit in PLANNED:
            with self.subTest(exhibit["name"]):
                source = exhibit["from"]
                command = (f"shiplap plan --model {source['model']} --from {source['framework']} "
                           f"'{source['flags']}' --ranks {source['ranks']}")
                self.assertTrue(command in page, f"docs/museum.md lacks {command}")


if __name__ == "__main__":
    if not PROGRAM:
        sys.exit("set SHIPLAP_PROGRAM to the program to test")
    if "--update" in sys.argv[1:]:
        update()
        sys.exit(0)
    unittest.main(verbosity=2)
