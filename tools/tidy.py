#!/usr/bin/env python3
"""Checks the rules of the house style that the compiler and clang-tidy cannot. Run by ctest.

    tools/tidy.py [ROOT]    print what is wrong as FILE:LINE: MESSAGE; exit 1 if anything is
"""

import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

# The tree of modules, from the bottom up. Modules of one row do not know each other.
ROWS = [
    ["base"],
    ["hardware", "workload", "trace", "dump"],
    ["engine", "comm", "kernels"],
    ["plan"],
    ["cost"],
    ["schedule", "sim", "layout"],
    ["strategy", "step", "dispatch", "overlap"],
    ["check", "run", "postmortem"],
    ["predict", "search", "compare", "report"],
    ["cli"],
]
ALSO_ALLOWED = {("search", "predict")}
FORBIDDEN = {
    ("run", "sim"): "interpreters of plans do not know each other",
    **{(planner, below): "planners give plans and never act"
       for planner in ("strategy", "step", "dispatch", "overlap") for below in ("comm", "kernels")},
}
LEVEL = {module: level for level, row in enumerate(ROWS) for module in row}

# Foreign libraries: what their includes look like, and the folders that may have them.
FOREIGN = {
    "nlohmann-json": (r"nlohmann/", ["src/shiplap/base/"]),
    "MPI": (r"mpi\.h", ["src/shiplap/comm/mpi/", "tests/parts/", "bench/comm/"]),
    "oneDNN": (r"(?:oneapi/dnnl/)?dnnl", ["src/shiplap/kernels/", "tests/parts/"]),
    "SimGrid": (r"(?:simgrid|smpi|xbt)[/.]",
                ["src/shiplap/comm/", "tests/links/", "tests/parts/"]),
    "fmt": (r"fmt/", [""]),
    "GoogleTest": (r"(?:gtest|gmock)/", [""]),
    "Google Benchmark": (r"benchmark/", ["bench/"]),
}

# Attributes of clang that g++ warns of: the one place for macros and conditional compilation.
THREAD_ANNOTATIONS = "src/shiplap/base/thread_annotations.h"
# Searched in C++ without its comments: what, why not, and where it is fine all the same.
BANNED = [
    (r"^[ \t]*#[ \t]*define\b", "no macros", [THREAD_ANNOTATIONS]),
    (r"\bconst_cast\b", "fix the constness at its source", []),
    (r"\bs?rand\(|\brandom_device\b|\bdefault_random_engine\b",
     "take a seeded Random from base/", []),
    (r"_clock::now|\bgettimeofday\(|\bclock_gettime\(|\btime\((?:nullptr|NULL|0)\)",
     "only what runs on real ranks, progress, cancellation and benchmarks may read a wall clock",
     ["src/shiplap/comm/", "src/shiplap/run/", "src/shiplap/base/cancellation.cc",
      "src/shiplap/base/progress.cc", "bench/",
      "python/bindings/jax/", "tests/simulation/syscalls.cc"]),
    (r"\([^()]*\bbool \w+[^()]*\bbool \w+[^()]*\)",
     "two flags in one signature; use an enum or a struct", []),
]
CONDITIONAL = re.compile(r"^[ \t]*#[ \t]*(?:if|ifdef|ifndef|elif)\b", re.MULTILINE)
TODO = re.compile(r"\bTODO(?!\([\w-]+\): )")
MAX_LINES = 1000
MAX_COLUMNS = 100

MACHINE_PATH = re.compile(r"(?<![\w.$}~*-])/(?:root|home|work|Users|opt/wheels)/\w")
REGISTRY = re.compile(r"pypi\.org|pythonhosted\.org|deb\.debian\.org")

CODE = re.compile(r'"(D\d{3})"')
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/'
    r'|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'", re.DOTALL)


def without_comments(text):
    """The same text with every comment blanked out; lines and columns stay where they are."""
    def blank(match):
        token = match[0]
        return re.sub(r"[^\n]", " ", token) if token.startswith(("//", "/*")) else token
    return TOKEN.sub(blank, text)


def line_of(text, position):
    return 1 + text.count("\n", 0, position)


@dataclass
class File:
    """One tracked text file."""
    path: str  # from the root, with slashes
    text: str
    code: str = field(init=False)  # C++ without comments

    def __post_init__(self):
        self.code = without_comments(self.text) if self.is_cpp else ""

    @property
    def is_cpp(self):
        return self.path.endswith((".h", ".cc"))

    @property
    def is_test(self):
        return self.path.endswith("_test.cc") or not self.path.startswith("src/")

    @property
    def module(self):
        """The name of the module, or None outside src/shiplap."""
        parts = self.path.split("/")
        return parts[2] if parts[:2] == ["src", "shiplap"] and len(parts) > 3 else None

    @property
    def is_public_header(self):
        return bool(self.module and self.path.endswith(".h") and
                    not self.path.endswith("_internal.h"))

    def found(self, position, message):
        return self.path, line_of(self.text, position), message


@dataclass
class Module:
    """What the CMakeLists.txt files of a module say."""
    headers: dict = field(default_factory=dict)  # path -> (CMakeLists.txt, line)
    sources: dict = field(default_factory=dict)  # SOURCES and TESTS
    depends: dict = field(default_factory=dict)  # module -> (CMakeLists.txt, line)
    private_depends: dict = field(default_factory=dict)


CALL = re.compile(r"\b(shiplap_(?:module|program|mpi_transport|plugin))\s*\(([^)]*)\)")
KEYWORDS = {"HEADERS", "SOURCES", "SOURCES_ALONE", "TESTS", "DEPENDS", "PRIVATE_DEPENDS",
            "INTERNAL"}


def read_lists(file, module):
    """Adds what one CMakeLists.txt says to `module`."""
    text = re.sub(r"#[^\n]*", lambda match: " " * len(match[0]), file.text)
    folder = file.path.rsplit("/", 1)[0]
    for call in CALL.finditer(text):
        keyword = None
        for word in list(re.finditer(r"\S+", call[2]))[1:]:
            if word[0] in KEYWORDS:
                keyword = word[0]
                continue
            where = file.path, line_of(text, call.start(2) + word.start())
            if keyword == "HEADERS":
                module.headers[f"{folder}/{word[0]}"] = where
            elif keyword in ("SOURCES", "SOURCES_ALONE", "TESTS"):
                module.sources[f"{folder}/{word[0]}"] = where
            elif "::" not in word[0]:
                target = module.depends if keyword == "DEPENDS" else module.private_depends
                target[word[0]] = where


def read_modules(files):
    modules = {}
    for file in files:
        if file.module:
            module = modules.setdefault(file.module, Module())
            if file.path.endswith("/CMakeLists.txt"):
                read_lists(file, module)
    return modules


def may_not_use(user, used):
    """Why module `user` must not use module `used`, or None if it may."""
    if used not in LEVEL:
        return f"there is no module {used}"
    if (user, used) in FORBIDDEN:
        return f"{user} must not use {used}: {FORBIDDEN[user, used]}"
    if LEVEL[used] < LEVEL[user] or (user, used) in ALSO_ALLOWED:
        return None
    if LEVEL[used] == LEVEL[user]:
        return f"{user} must not use {used}: neighbours do not know each other"
    return f"{user} must not use {used}: it stands below it in the tree of modules"


def check_layers(files, modules):
    for name, module in modules.items():
        if name not in LEVEL:
            yield f"src/shiplap/{name}", 1, f"{name} is not in the tree of modules in tools/tidy.py"
            continue
        for used, where in [*module.depends.items(), *module.private_depends.items()]:
            if used != name and (why := may_not_use(name, used)):
                yield *where, why
    for file in files:
        if file.is_cpp and file.module in LEVEL:
            yield from check_includes(file, modules[file.module])


def check_includes(file, module):
    for include in INCLUDE.finditer(file.code):
        match = re.fullmatch(r"shiplap/(\w+)/(.*)", include[2])
        if not match or match[1] == file.module:
            continue
        used = match[1]
        if why := may_not_use(file.module, used):
            yield file.found(include.start(), why)
        elif file.is_public_header and used not in module.depends:
            yield file.found(include.start(), f"a public header uses {used}, not in DEPENDS")
        elif used not in module.depends and used not in module.private_depends:
            yield file.found(include.start(), f"{used} is in neither DEPENDS nor PRIVATE_DEPENDS")
        if match[2].endswith("_internal.h"):
            yield file.found(include.start(), f"{include[2]} is private to {used}")


def check_lists(files, modules):
    on_disk = {file.path for file in files}
    for file in files:
        if not file.module or not file.is_cpp:
            continue
        module = modules[file.module]
        if file.is_public_header and file.path not in module.headers:
            yield file.path, 1, "not in HEADERS of its module"
        if file.path.endswith(".cc") and file.path not in module.sources:
            yield file.path, 1, "in neither SOURCES nor TESTS of its module"
    for module in modules.values():
        for path, where in [*module.headers.items(), *module.sources.items()]:
            if path not in on_disk:
                yield *where, f"{path} does not exist"
            elif path.endswith("_internal.h"):
                yield *where, f"{path} is private and cannot be in HEADERS"


def check_foreign(files, modules):
    for file in files:
        for include in INCLUDE.finditer(file.code):
            for library, (pattern, folders) in FOREIGN.items():
                if not re.match(pattern, include[2]):
                    continue
                if file.is_public_header:
                    yield file.found(include.start(), f"a public header must not need {library}")
                elif not file.path.startswith(tuple(folders)):
                    yield file.found(include.start(),
                                     f"{library} may be named only in {', '.join(folders)}")


def check_banned(files, modules):
    for file in files:
        for pattern, remedy, fine_in in BANNED:
            if fine_in and file.path.startswith(tuple(fine_in)):
                continue
            for match in re.finditer(pattern, file.code, re.MULTILINE):
                yield file.found(match.start(), remedy)
        if file.is_cpp:
            for match in TODO.finditer(file.text):
                yield file.found(match.start(), "write TODO(topic): and a sentence")
        if file.module and file.path != THREAD_ANNOTATIONS:
            for match in CONDITIONAL.finditer(file.code):
                yield file.found(match.start(),
                                 "no conditional compilation: link another file in its place")


def check_size(files, modules):
    for file in files:
        if not file.path.endswith((".h", ".cc", ".py", ".cmake", "CMakeLists.txt")):
            continue
        lines = file.text.splitlines()
        if len(lines) > MAX_LINES:
            yield file.path, MAX_LINES + 1, f"{len(lines)} lines; make two files of it"
        for number, line in enumerate(lines, 1):
            if len(line) > MAX_COLUMNS:
                yield file.path, number, f"{len(line)} columns; at most {MAX_COLUMNS}"


def check_diagnostics(files, modules):
    """Every code has a page, every page is used, and a test provokes every code."""
    used, pages, provoked = {}, {}, set()
    for file in files:
        page = re.fullmatch(r"docs/diagnostics/(D\d{3})\.md", file.path)
        if page:
            pages[page[1]] = file
        elif file.path.startswith("python/shiplap/") or file.is_cpp and (
                file.path.startswith("python/bindings/") or file.module and not file.is_test):
            for match in CODE.finditer(file.code or file.text):
                used.setdefault(match[1], file.found(match.start(), ""))
        if file.path.endswith("_test.cc") or re.match(
                r"tests/golden/.*\.txt$|python/tests/(test_|workers/).*\.py$", file.path):
            provoked.update(re.findall(r"\bD\d{3}\b", file.code or file.text))
    for code, (path, line, _) in used.items():
        if code not in pages:
            yield path, line, f"{code} has no page docs/diagnostics/{code}.md"
        if code not in provoked:
            yield path, line, (f"{code} is provoked by no test (tests/golden/*.txt, *_test.cc or "
                               "python/tests/test_*.py)")
    for code, file in pages.items():
        if code not in used:
            yield file.path, 1, f"nothing in src/ or python/ gives {code}"
        if not file.text.startswith(f"# {code}: "):
            yield file.path, 1, f"must begin with '# {code}: ' and a title"


def check_prose(files, modules):
    for file in files:
        for match in MACHINE_PATH.finditer(file.text):
            yield file.found(match.start(), "a path of one machine")
        for match in REGISTRY.finditer(file.text):
            yield file.found(match.start(), "the name of a package registry's host")


# docs/glossary.md names, for each concept, the words that it replaces. Where one of them is fine:
# (word, paths that begin so, why).
PRIVATE_WORDS_ALLOWED = [
    ("", "docs/glossary.md", "the table itself"),
    ("", "tools/tidy.py", "this list"),
    ("", "tests/tidy_test.py", "it plants them"),
    ("", "CHANGELOG.md", "it says what names were called before"),
    ("", "fuzz/corpus/", "inputs, found by machines"),
    ("", "data/", "files of other projects"),
    ("size_of_all", "python/bindings/jax/handlers.cc", "an attribute in stored JAX programs"),
    *[("circle", path, "an element of SVG")
      for path in ("examples/puzzles.ipynb", "src/shiplap/report/")],
    *[("*_called", path, "finalize_called is a key of NCCL's JSON")
      for path in ("src/shiplap/dump/nccl_ras", "data/hung_jobs/ncclras/", "fuzz/corpus/dump/")],
    *[(word, "tests/check/", "the oracle has its own words, as it shares no code with check")
      for word in ("Meeting", "Verdict", "own_*")],
]


def private_words(glossary):
    """Each private word of the last column, a piece of it in lower case, and a pattern for it."""
    for row in re.findall(r"^\|(?:[^|\n]*\|){2}([^|\n]+)\|$", glossary, re.MULTILINE):
        for word in re.findall(r"`([^`]+)`", row):
            text = r"\s+(?:(?://|#)\s*)?".join(map(re.escape, word.split())).replace(r"\*", r"\w*")
            is_name = re.search(r"[A-Z_*]", word)
            piece = max(word.replace("*", " ").split(), key=len).lower()
            yield word, piece, re.compile(rf"(?<!\w){text}(?!\w)", 0 if is_name else re.IGNORECASE)


def check_words(files, modules):
    """No private word of the glossary occurs in names, comments, pages or outputs."""
    glossary = next((file.text for file in files if file.path == "docs/glossary.md"), "")
    lower = [(file, file.text.lower()) for file in files]
    for word, piece, pattern in private_words(glossary):
        for file in [file for file, text in lower if piece in text]:
            if any(exempt in ("", word) and file.path.startswith(path)
                   for exempt, path, _ in PRIVATE_WORDS_ALLOWED):
                continue
            for match in pattern.finditer(file.text):
                yield file.found(match.start(), f"`{word}`: docs/glossary.md has the field's word")


RULES = [check_layers, check_lists, check_foreign, check_banned, check_size, check_diagnostics,
         check_prose, check_words]


def tracked(root):
    """The files that git tracks or would track; without git, all but what is built."""
    listing = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, text=True, check=False)
    if (root / ".git").exists() and listing.returncode == 0:
        return sorted(path for path in set(listing.stdout.split("\0")) if (root / path).is_file())
    paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in paths
                  if path.parts[0] not in {".git", ".deps", "build"})


def read_tree(root):
    files = []
    for path in tracked(root):
        try:
            files.append(File(path, (root / path).read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            pass  # a picture or a corpus file: no prose in it
    return files


def findings(root):
    files = read_tree(root)
    modules = read_modules(files)
    return sorted({finding for rule in RULES for finding in rule(files, modules)}), len(files)


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found, count = findings(root)
    for path, line, message in found:
        print(f"{path}:{line}: {message}")
    print(f"{len(found)} findings in {count} files")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
