"""Tests tools/tidy.py: a small tree that keeps every rule, and then breaks one at a time."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent / "tools"
sys.path.insert(0, str(TOOLS))
sys.dont_write_bytecode = True
import tidy as rules  # noqa: E402  (it is found only now)

BASE = "src/shiplap/base/"
PLAN = "src/shiplap/plan/"
GOOD = {
    BASE + "CMakeLists.txt": "shiplap_module(base  # a comment\n  HEADERS units.h\n"
                             "  SOURCES units.cc\n  TESTS units_test.cc)\n",
    BASE + "units.h": '// A code in a comment, "D999", is not a use of it.\n',
    BASE + "units.cc": '#include "shiplap/base/units.h"\nauto code() { return "D001"; }\n',
    BASE + "units_test.cc": '#include <gtest/gtest.h>\nauto expected = "error[D001]";\n',
    PLAN + "CMakeLists.txt": "shiplap_module(plan\n  HEADERS plan.h\n  SOURCES plan.cc\n"
                             "  DEPENDS base\n  PRIVATE_DEPENDS trace fmt::fmt-header-only)\n",
    PLAN + "plan.h": '#include "shiplap/base/units.h"\n',
    PLAN + "plan.cc": '#include <fmt/format.h>\n#include "shiplap/plan/words_internal.h"\n'
                      '#include "shiplap/trace/event.h"\n',
    PLAN + "words_internal.h": "// Not installed and not listed.\n",
    "src/shiplap/trace/CMakeLists.txt": "shiplap_module(trace HEADERS event.h)\n",
    "src/shiplap/trace/event.h": "// What happened.\n",
    "docs/diagnostics/D001.md": "# D001: something is wrong\n",
    "bench/clock.cc": "auto now = std::chrono::steady_clock::now();\n",
}


def module(name, source, depends=""):
    """A module of one source file."""
    folder = f"src/shiplap/{name}/"
    return {folder + "CMakeLists.txt": f"shiplap_module({name} SOURCES a.cc DEPENDS {depends})\n",
            folder + "a.cc": source}


def write(folder, changes):
    """The good tree with some files replaced (None: removed)."""
    for path, text in {**GOOD, **changes}.items():
        if text is not None:
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")


class Tidy(unittest.TestCase):
    def findings(self, changes):
        with tempfile.TemporaryDirectory() as folder:
            write(folder, changes)
            found, _ = rules.findings(Path(folder))
            return [f"{path}:{line}: {message}" for path, line, message in found]

    def accepts(self, changes):
        self.assertEqual(self.findings(changes), [])

    def refuses(self, changes, words):
        """There is one finding, and it contains this text."""
        found = self.findings(changes)
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])

    def test_a_good_tree_is_accepted(self):
        self.accepts({})

    def test_the_program_prints_findings_and_fails(self):
        for changes, code, output in [
                ({}, 0, f"0 findings in {len(GOOD)} files\n"),
                ({PLAN + "plan.cc": "#define ONE\n"}, 1,
                 f"src/shiplap/plan/plan.cc:1: no macros\n1 findings in {len(GOOD)} files\n")]:
            with tempfile.TemporaryDirectory() as folder:
                write(folder, changes)
                run = subprocess.run([sys.executable, str(TOOLS / "tidy.py"), folder],
                                     capture_output=True, text=True, check=False)
                self.assertEqual((run.returncode, run.stdout), (code, output))

    def test_an_include_from_below(self):
        self.refuses({BASE + "units.h": '\n#include "shiplap/plan/plan.h"\n'},
                     "base/units.h:2: base must not use plan: it stands below it")

    def test_neighbours(self):
        self.refuses(module("check", '#include "shiplap/run/a.h"\n'),
                     "check/a.cc:1: check must not use run: neighbours")
        self.refuses(module("report", '#include "shiplap/compare/a.h"\n'),
                     "report must not use compare: neighbours")

    def test_the_order_within_rows(self):
        self.accepts(module("cost", '#include "shiplap/plan/plan.h"\n', "plan"))
        self.accepts(module("schedule", '#include "shiplap/cost/a.h"\n', "cost"))
        self.accepts(module("search", '#include "shiplap/predict/a.h"\n', "predict"))
        self.refuses(module("predict", '#include "shiplap/search/a.h"\n'), "neighbours")

    def test_interpreters_do_not_know_each_other(self):
        self.refuses(module("run", '#include "shiplap/sim/replay.h"\n'),
                     "interpreters of plans do not know each other")
        self.refuses(module("run", '#include "shiplap/check/check.h"\n'), "neighbours")
        self.accepts(module("run", '#include "shiplap/engine/task.h"\n', "engine"))

    def test_planners_do_not_act(self):
        for planner in ("strategy", "dispatch", "overlap"):
            for below in ("comm", "kernels"):
                self.refuses(module(planner, f'#include "shiplap/{below}/a.h"\n'),
                             "planners give plans and never act")

    def test_a_dependency_that_the_tree_forbids(self):
        self.refuses(module("run", "", "sim"), "run/CMakeLists.txt:1: run must not use sim")

    def test_a_module_that_is_not_in_the_tree(self):
        self.refuses(module("utils", ""), "utils is not in the tree of modules")

    def test_an_include_that_the_module_does_not_declare(self):
        self.refuses({BASE + "CMakeLists.txt": GOOD[BASE + "CMakeLists.txt"],
                      **module("cost", '#include "shiplap/plan/plan.h"\n', "base")},
                     "cost/a.cc:1: plan is in neither DEPENDS nor PRIVATE_DEPENDS")

    def test_a_public_header_with_a_private_dependency(self):
        self.refuses({PLAN + "plan.h": '#include "shiplap/trace/event.h"\n'},
                     "plan/plan.h:1: a public header uses trace, not in DEPENDS")

    def test_a_private_header_of_another_module(self):
        self.refuses(module("cost", '#include "shiplap/plan/words_internal.h"\n', "plan"),
                     "plan/words_internal.h is private to plan")

    def test_files_that_no_list_names(self):
        self.refuses({BASE + "more.h": ""}, "base/more.h:1: not in HEADERS")
        self.refuses({BASE + "more.cc": ""}, "base/more.cc:1: in neither SOURCES nor TESTS")
        self.refuses({BASE + "more_test.cc": ""}, "more_test.cc:1: in neither SOURCES nor TESTS")

    def test_listed_files_that_do_not_exist(self):
        self.refuses({PLAN + "plan.h": None}, "CMakeLists.txt:2: src/shiplap/plan/plan.h does not")
        self.refuses({PLAN + "plan.cc": None}, "CMakeLists.txt:3: src/shiplap/plan/plan.cc does")

    def test_a_listed_private_header(self):
        self.refuses({PLAN + "CMakeLists.txt": GOOD[PLAN + "CMakeLists.txt"].replace(
            "HEADERS plan.h", "HEADERS plan.h words_internal.h")}, "is private and cannot be")

    def test_foreign_libraries_stay_in_their_folders(self):
        for include, library in [("nlohmann/json.hpp", "nlohmann-json"),
                                 ("mpi.h", "MPI"), ("dnnl.hpp", "oneDNN"),
                                 ("oneapi/dnnl/dnnl.hpp", "oneDNN"),
                                 ("simgrid/s4u.hpp", "SimGrid"), ("smpi/mpi.h", "SimGrid")]:
            self.refuses({PLAN + "plan.cc": f"#include <{include}>\n"},
                         f"plan/plan.cc:1: {library} may be named only in")
        self.accepts({BASE + "units.cc": '#include <nlohmann/json.hpp>\nauto c = "D001";\n'})
        self.accepts({"tests/parts/mpi.cc": "#include <mpi.h>\n"})

    def test_a_public_header_needs_no_foreign_library(self):
        self.refuses({BASE + "units.h": "#include <fmt/format.h>\n"}, "must not need fmt")
        self.refuses({BASE + "units.h": "#include <nlohmann/json_fwd.hpp>\n"},
                     "must not need nlohmann-json")

    def test_private_words(self):
        table = {"docs/glossary.md": "| word | meaning | not |\n|---|---|---|\n"
                                     "| cycle | a loop | `circle`, `wait for ever`, `kMost*` |\n"}
        for text in ["// a Circle of two\n", "// they wait\n// for ever\n",
                     "int a = kMostRanks;\n"]:
            self.refuses({**table, PLAN + "plan.cc": "\n" + text}, "docs/glossary.md has")
        self.accepts({**table, "docs/plan.md": "circles, encircle, kmostRanks, wait\n"})

    def test_banned_words(self):
        for line, remedy in [
                ("#define ONE 1", "no macros"),
                ("auto a = const_cast<int&>(b);", "constness"),
                ("auto a = rand();", "seeded Random"),
                ("std::random_device source;", "seeded Random"),
                ("auto a = std::chrono::steady_clock::now();", "wall clock"),
                ("auto a = std::time(nullptr);", "wall clock"),
                ("// TODO: later", "TODO(topic)"),
                ("void f(bool a, int b, bool c);", "two flags"),
                ("#ifdef HAVE_MPI", "no conditional compilation"),
                ("#if __has_include(<mpi.h>)", "no conditional compilation")]:
            self.refuses({PLAN + "plan.cc": f"\n{line}\n"}, "plan/plan.cc:2: ")
            self.refuses({PLAN + "plan.cc": f"\n{line}\n"}, remedy)

    def test_comments_may_mention_what_is_banned(self):
        self.accepts({PLAN + "plan.cc": "// No const_cast, no rand(), no\n/* #define here */\n"
                                        "// TODO(words): write more of them.\n"
                                        'auto n = 1\'000\'000; auto s = "//"; // rand()\n'})

    def test_long_files_and_long_lines(self):
        self.accepts({PLAN + "plan.cc": "//\n" * 1000 + ""})
        self.refuses({PLAN + "plan.cc": "//\n" * 1001}, "plan/plan.cc:1001: 1001 lines")
        self.accepts({PLAN + "plan.cc": "//" + "é" * 98})
        self.refuses({PLAN + "plan.cc": "//" + "x" * 99}, "plan/plan.cc:1: 101 columns")

    def test_a_code_without_a_page(self):
        self.refuses({"docs/diagnostics/D001.md": None}, "units.cc:2: D001 has no page")

    def test_a_page_that_nothing_uses(self):
        self.refuses({"docs/diagnostics/D002.md": "# D002: something else\n"},
                     "D002.md:1: nothing in src/ or python/ gives D002")

    def test_a_page_without_its_title(self):
        self.refuses({"docs/diagnostics/D001.md": "# Something is wrong\n"},
                     "D001.md:1: must begin with '# D001: '")

    def test_a_code_that_no_test_provokes(self):
        silent = {BASE + "units_test.cc": "// D001 in a comment provokes nothing.\n"}
        self.refuses(silent, "units.cc:2: D001 is provoked by no test")
        self.accepts({**silent, "tests/golden/check/a.txt": "error[D001]: something is wrong\n"})
        self.refuses({**silent, "tests/golden/check/a.plan": "D001\n"}, "provoked by no test")

    def test_paths_of_one_machine_and_hosts_of_registries(self):
        for folder in ("root", "home", "work", "Users"):
            self.refuses({"README.md": f"See /{folder}/somebody/file.\n"}, "README.md:1: a path of")
        self.accepts({"README.md": "See docs/work/file and ~/home/file and $HOME/root/file.\n"})
        self.refuses({"README.md": "\nFrom pypi" + ".org.\n"}, "README.md:2: the name of a package")


if __name__ == "__main__":
    unittest.main()
