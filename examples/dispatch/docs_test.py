#!/usr/bin/env python3
"""Keeps docs/dispatch, docs/overlap, docs/seeds.md and the page on writing strategies honest: what
they show is what there is. Run by ctest.

- A ```cpp block that begins with `// file: PATH` is an excerpt of that file, line by line.
- An ```output block begins with `# file: PATH`; the rest is an excerpt of that file. The examples'
  own tests compare these files with what the programs print.
- A diagnostic of dispatch or overlap that is quoted elsewhere stands so in docs/diagnostics.
- Links lead to files, and to headings in them. Tests, checks and files named in `code` exist.
- The pages of these in docs/diagnostics send the reader to headings that exist.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [ROOT / "docs" / "dispatch", ROOT / "docs" / "overlap"]

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"(?://|#) file: (\S+)\n")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
TEST = re.compile(r"[A-Z]\w+\.[A-Z]\w+")
CHECK = re.compile(r"[a-z_]+/[a-z_0-9]+")
PATH = re.compile(r"(?:src|tests|docs|tools|examples)/[\w/.-]+")
READ_ON = re.compile(r'`(docs/(?:dispatch|overlap)/[^`]+)`(?:,\s+"([^"]+)")?')
DIAGNOSTIC = re.compile(r"^ *((?:error|warning|note)\[D[48]\d\d\]: .*)$", re.MULTILINE)


def read(path):
    return path.read_text(encoding="utf-8")


def all_text(pattern):
    return "\n".join(read(path) for path in sorted(ROOT.glob(pattern)))


def gtest_names():
    text = all_text("src/shiplap/**/*_test.cc") + all_text("tests/**/*_test.cc")
    return {f"{suite}.{name}" for suite, name in re.findall(r"^TEST\w*\((\w+), (\w+)\)", text,
                                                            re.MULTILINE)}


def anchors(text):
    """The headings of a page, as links name them."""
    prose = BLOCK.sub("", text)
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def check_blocks(text):
    for kind, body in BLOCK.findall(text):
        named = FILE.match(body)
        if not named:
            if kind in ("cpp", "output"):
                yield f"a block ```{kind} does not say of which file it is:\n{body}"
            continue
        excerpt = "\n" + body[named.end():]
        path = ROOT / named[1]
        if not path.is_file():
            yield f"there is no {named[1]}"
        elif excerpt not in "\n" + read(path):
            yield f"this is not in {named[1]}:\n{excerpt[1:]}"


def check_links(page, text):
    for target in LINK.findall(BLOCK.sub("", text)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            yield f"the link {target} leads nowhere"
        elif anchor and anchor not in anchors(read(path)):
            yield f"{name or page.name} has no heading #{anchor}"


def check_names(text, tests, checks):
    for word in CODE.findall(BLOCK.sub("", text)):
        if TEST.fullmatch(word) and word not in tests:
            yield f"there is no test {word}"
        elif PATH.fullmatch(word) and not (ROOT / word).exists():
            yield f"there is no file {word}"
        elif CHECK.fullmatch(word) and not (ROOT / word).exists() and f'"{word}"' not in checks:
            yield f"tests/run has no check {word}"


def check_diagnostics(text, pages):
    for line in DIAGNOSTIC.findall(BLOCK.sub("", text)):
        if line not in pages:
            yield f"docs/diagnostics does not have\n{line}"


def check_read_on(text):
    for name, title in READ_ON.findall(text):
        if not (ROOT / name).is_file():
            yield f"there is no {name}"
        elif title and not re.search(rf"^#+ {re.escape(title)}$", read(ROOT / name), re.MULTILINE):
            yield f"{name} has no heading {title}"


def main():
    tests = gtest_names()
    checks = all_text("tests/run/*.cc")
    diagnostics = all_text("docs/diagnostics/D[48]*.md")
    pages = [page for folder in FOLDERS for page in sorted(folder.rglob("*.md"))]
    pages += [ROOT / "docs" / name for name in ("seeds.md", "write-a-strategy.md")]
    found = []
    for page in pages:
        text = read(page)
        for finding in [*check_blocks(text), *check_links(page, text),
                        *check_names(text, tests, checks), *check_diagnostics(text, diagnostics)]:
            found.append(f"{page.relative_to(ROOT)}: {finding}")
    for page in sorted(ROOT.glob("docs/diagnostics/D[48]*.md")):
        found += [f"{page.name}: {finding}" for finding in check_read_on(read(page))]
    print("\n".join(found))
    if not pages or not tests:
        sys.exit("nothing to check")
    print(f"{len(found)} findings in {len(pages)} pages")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
