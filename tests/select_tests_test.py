"""Tests tools/select-tests and tools/list-cases on tables and listings made up here."""

import importlib.machinery
import importlib.util
import io
import json
import stat
import subprocess
import sys
import tempfile
import unittest
from contextlib import redirect_stdout
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent / "tools"
sys.dont_write_bytecode = True


def tool(name):
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(TOOLS / name))
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module  # dataclasses look there
    loader.exec_module(module)
    return module


SELECT = tool("select-tests")
TABLE = r"""
| tests | gate | long | why there |
|---|---|---|---|
| `comm/conformance/(threads_4\|sockets_4)` | asan, tsan | dev, asan | once each |
| `comm/conformance/` | - | dev | the others |
| `\w+/\w+_test/` | dev, asan | dev, asan | one module |
"""
NAMES = ["comm/conformance/threads_4", "comm/conformance/threads_64", "check/sums_test/Sums.Add"]


class Table(unittest.TestCase):
    def setUp(self):
        self.rows = SELECT.read_table(TABLE)

    def test_the_first_row_that_matches_counts(self):
        self.assertEqual(SELECT.selected(self.rows, NAMES, "asan", False), [NAMES[0], NAMES[2]])
        self.assertEqual(SELECT.selected(self.rows, NAMES, "tsan", False), [NAMES[0]])
        self.assertEqual(SELECT.selected(self.rows, NAMES, "dev", False), [NAMES[2]])
        self.assertEqual(SELECT.selected(self.rows, NAMES, "dev", True), NAMES)

    def test_a_test_that_no_row_matches_ends_the_stage(self):
        with self.assertRaises(SystemExit) as ended:
            SELECT.selected(self.rows, [*NAMES, "new/kind"], "dev", False)
        self.assertIn("new/kind", str(ended.exception))

    def faults(self, rows, names):
        printed = io.StringIO()
        with redirect_stdout(printed):
            good = SELECT.check(rows, names)
        self.assertEqual(good, "0 faults" in printed.getvalue())
        return printed.getvalue()

    def test_a_check_names_what_the_table_lacks_and_what_it_has_in_vain(self):
        self.assertIn("0 faults", self.faults(self.rows, NAMES))
        self.assertIn("no row matches new/kind", self.faults(self.rows, [*NAMES, "new/kind"]))
        self.assertIn("matches no test", self.faults(self.rows, NAMES[:2]))
        nowhere = [SELECT.Row(".*", [], [], "a mistake")]
        self.assertIn("is run nowhere", self.faults(nowhere, NAMES))

    def test_an_unknown_stage_is_an_error(self):
        with self.assertRaises(SystemExit):
            SELECT.read_table("| `a` | dev, speed | dev | why |\n")

    def test_a_page_without_a_table_is_an_error(self):
        with self.assertRaises(SystemExit):
            SELECT.read_table("| no | patterns |\n")


class Cases(unittest.TestCase):
    def listing(self, cases, *arguments):
        """What list-cases prints of a program that has these cases, as (file, suite, name)."""
        suites = [{"name": suite, "testsuite": [{"name": name, "file": file}]}
                  for file, suite, name in cases]
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "program")
            answer = json.dumps({"testsuites": suites})
            program.write_text(
                f"#!{sys.executable}\nimport sys\npath = [a for a in sys.argv if 'json:' in a][0]\n"
                f"open(path.split('json:')[1], 'w').write({answer!r})\n")
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
            ctest = Path(folder, "cases.cmake")
            run = subprocess.run([sys.executable, TOOLS / "list-cases", program,
                                  *[str(ctest) if word == "FILE" else word for word in arguments]],
                                 capture_output=True, text=True, check=False)
            return run, ctest.read_text() if ctest.exists() else ""

    def test_cases_are_listed_with_their_files(self):
        run, _ = self.listing([("src/a/sums_test.cc", "Sums", "Add")])
        self.assertEqual(run.stdout, "sums_test Sums.Add\n")

    def test_each_case_is_a_test_of_ctest(self):
        run, written = self.listing([("src/a/sums_test.cc", "Sums", "Add")], "--ctest", "FILE",
                                    "--prefix", "a", "--environment", "X=1", "Y=2")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("add_test([==[a/sums_test/Sums.Add]==]", written)
        self.assertIn("[==[--gtest_filter=Sums.Add]==]", written)
        self.assertIn("ENVIRONMENT [==[X=1;Y=2]==]", written)

    def test_two_cases_of_one_name_are_an_error(self):
        run, _ = self.listing([("a_test.cc", "Sums", "Add"), ("b_test.cc", "Sums", "Add")])
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("Sums.Add", run.stderr)


if __name__ == "__main__":
    unittest.main()
