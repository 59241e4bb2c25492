"""The pages about Python can be pasted from top to bottom, and print what they say.

Blocks of ```python run in order, in one namespace, in a copy of the examples' folder; a block of
```text right behind one is what it prints. There `...` stands for any text.
"""

import contextlib
import doctest
import io
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

PAGES = ("docs/tour.md", "docs/python.md", "docs/torch.md", "docs/jax.md", "docs/check-in-ci.md",
         "docs/puzzles.md")
NEEDS = {"docs/torch.md": "torch", "docs/jax.md": "jax", "docs/check-in-ci.md": "torch"}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[int, str, str]]:
    """Line, language and content of each."""
    return [
        (text.count("\n", 0, found.start()) + 2, found[1], found[2])
        for found in BLOCK.finditer(text)
    ]


def paste(path: pathlib.Path) -> None:
    """All blocks of a page."""
    found = blocks(path.read_text())
    assert any(language == "python" for _, language, _ in found)
    namespace = {"__name__": "__page__"}
    for (line, language, code), (_, after, expected) in zip(
        found, [*found[1:], (0, "", "")], strict=True
    ):
        if language != "python":
            continue
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            # Blank lines in front, so that tracebacks have the lines of the page.
            exec(compile("\n" * (line - 1) + code, str(path), "exec"), namespace)
        wanted = expected if after == "text" else ""
        same = doctest.OutputChecker().check_output(
            wanted, said.getvalue(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        )
        assert same, f"{path.name}:{line} printed\n{said.getvalue()}instead of\n{wanted}"


@pytest.mark.parametrize("page", PAGES)
def test_page(page, root, tmp_path, monkeypatch):
    if page in NEEDS:
        pytest.importorskip(NEEDS[page])
    shutil.copytree(root / "examples", tmp_path / "examples")
    if page != "docs/jax.md":
        monkeypatch.chdir(tmp_path)
        return paste(root / page)
    # JAX asks how many devices there are once in a process.
    done = subprocess.run([sys.executable, __file__, root / page], cwd=tmp_path,
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_exists(page, root):
    """Its links within the repository."""
    path = root / page
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{page} links to {target}"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_quotes_files_as_they_are(page, root):
    """A block of ```output whose first line is `# file: NAME` is part of that file."""
    for _, language, content in blocks((root / page).read_text()):
        first, _, rest = content.partition("\n")
        if language == "output" and first.startswith("# file: "):
            assert rest in (root / first.removeprefix("# file: ")).read_text(), first


if __name__ == "__main__":
    paste(pathlib.Path(sys.argv[1]))
