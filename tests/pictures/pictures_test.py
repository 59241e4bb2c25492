#!/usr/bin/env python3
"""Opens sample reports in headless Chromium, on a screen, a telephone and paper, light and dark.

    pictures_test.py SAMPLE TRACES           the programs pictures_sample and trace_sample
    pictures_test.py --look FOLDER FILE...   only writes PNGs of the given reports

Exit code: 0 all is well, 1 something is wrong, 77 there is no Chromium.
"""

import base64
import subprocess
import sys
import tempfile
from pathlib import Path

import browser

SKIPPED = 77
SCREENS = {"wide": (1280, 900, "screen"), "narrow": (390, 844, "screen"),
           "paper": (700, 990, "print")}
RANKS = (1, 8, 24, 512)
TRACES = (("1f1b", 1, 2), ("1f1b", 4, 8), ("1f1b", 16, 16), ("1f1b", 64, 128), ("sharded", 8, 6),
          ("sharded", 130, 6), ("random", 3, 0))

# Texts of one picture that cover each other, as a reader would see them.
OVERLAPS = """(() => {
  const found = [];
  for (const svg of document.querySelectorAll("svg")) {
    const texts = [...svg.querySelectorAll("text")]
        .map((text) => [text.textContent, text.getBoundingClientRect()])
        .filter(([, box]) => box.width > 0);
    for (let i = 0; i < texts.length; ++i) {
      for (let j = i + 1; j < texts.length; ++j) {
        const [a, b] = [texts[i][1], texts[j][1]];
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const along = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (across > 1 && along > 4) found.push(texts[i][0] + " | " + texts[j][0]);
      }
    }
  }
  return found.slice(0, 5);
})()"""
SMALLEST_TEXT = """Math.min(...[...document.querySelectorAll("svg text")]
    .map((text) => text.getBoundingClientRect()).filter((box) => box.width > 0)
    .map((box) => Math.min(box.height, 99)))"""
LABELS = """[...document.querySelectorAll("svg.time text")]
    .filter((text) => text.getBoundingClientRect().width > 0).length"""
TIP = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"
FIRST_BOX = """(async () => {
  const svg = document.querySelector("svg.boxes");
  svg.scrollIntoView();
  for (let frame = 0; frame < 3; ++frame) await new Promise(requestAnimationFrame);
  const box = svg.querySelector(".m").getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
})()"""


def looks_wrong(tab, pictures):
    """The rendering errors of the open page, which has at least this many pictures."""
    yield from (f"console: {complaint}" for complaint in tab.complaints())
    wide = tab.evaluate("document.documentElement.scrollWidth - innerWidth")
    if wide > 0:
        yield f"{wide} pixels wider than the window"
    if tab.evaluate("document.querySelectorAll('svg').length") < pictures:
        yield "a picture is missing"
    if tab.evaluate("document.querySelectorAll('svg .m').length") == 0:
        yield "the pictures are empty"
    yield from (f"texts cover each other: {pair}" for pair in tab.evaluate(OVERLAPS))
    smallest = tab.evaluate(SMALLEST_TEXT)
    if smallest < 8:
        yield f"a text is {smallest:.1f} pixels high"


def acts_wrong(tab, pictures, word):
    """What does not answer to the pointer or the keyboard. The facts of a box have `word`."""
    tab.point(*tab.evaluate(FIRST_BOX))
    if word not in tab.evaluate(TIP):
        yield "pointing at a box tells nothing"
    tab.point(2, 2)
    if tab.evaluate(TIP) != "":
        yield "the facts stay when the pointer has gone"
    for picture in pictures:
        tab.evaluate(f"document.querySelector('{picture}').focus()")
        told = []
        for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
            tab.press(key)
            told.append(tab.evaluate(TIP))
        if "" in told:
            yield f"arrow keys tell nothing in {picture}: {told}"
    yield from (f"console: {complaint}" for complaint in tab.complaints())


def zooms_wrong(tab):
    """What is wrong with the buttons over lanes of time. Labels that have room then must appear."""
    before = tab.evaluate(LABELS)
    for _ in range(3):
        tab.evaluate("document.querySelector('[data-zoom=\"2\"]').click()")
    width = tab.evaluate("document.querySelector('.stretch').offsetWidth / "
                         "document.querySelector('.scroll').clientWidth")
    if abs(width - 8) > 0.01:
        yield f"zooming three times makes it {width} times as wide"
    if tab.evaluate(LABELS) < before:
        yield "zooming in hides labels"
    yield from (f"zoomed, texts cover each other: {pair}" for pair in tab.evaluate(OVERLAPS))
    if tab.evaluate("document.documentElement.scrollWidth - innerWidth") > 0:
        yield "zooming makes the page wider"
    tab.evaluate("document.querySelector('[data-zoom=\"0\"]').click()")


def arrows_wrong(tab):
    """A message that is pointed at must show its way, if both of its ends are drawn."""
    if tab.evaluate("document.querySelectorAll('.c.in[data-m]').length") == 0:
        return
    tab.evaluate("document.querySelector('svg.time').focus()")
    for key in ("ArrowRight", "ArrowDown"):
        tab.press(key)
    shown = tab.evaluate("[document.querySelectorAll('.m.at[data-m]').length,"
                         " document.querySelectorAll('.arrow.at').length]")
    if shown not in ([0, 0], [1, 2]):
        yield f"marks and arrows of a message: {shown}"


def dispatch_wrong(tab, is_still):
    yield from looks_wrong(tab, 4)
    if not is_still:
        yield from acts_wrong(tab, ("svg.boxes", ".matrix svg"), "document")


def trace_wrong(tab, is_still):
    yield from looks_wrong(tab, 3)
    if not is_still:
        yield from acts_wrong(tab, ("svg.boxes",), "rank ")
        yield from zooms_wrong(tab)
        yield from arrows_wrong(tab)
        yield from (f"console: {complaint}" for complaint in tab.complaints())


def check(tab, path, problems, may_be_still=False):
    wrong = []
    for screen, (width, height, media) in SCREENS.items():
        for scheme in ("light", "dark"):
            tab.open(path.as_uri(), width, height, scheme, media)
            found = problems(tab, media == "print" or may_be_still)
            wrong += [f"{path.name}, {screen}, {scheme}: {problem}" for problem in found]
    return wrong


def look(tab, folder, paths):
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        for screen, (width, height, media) in SCREENS.items():
            for scheme in ("light", "dark") if media == "screen" else ("light",):
                tab.open(path.resolve().as_uri(), width, height, scheme, media)
                name = f"{path.stem}-{screen}-{scheme}.png"
                (folder / name).write_bytes(base64.b64decode(tab.shot()))


def main():
    path = browser.find()
    if not path:
        print("pictures: SKIPPED, nobody looks at the reports here: there is no Chromium; "
              "on Debian: apt-get install chromium")
        sys.exit(SKIPPED)
    with browser.Browser(path) as tab, tempfile.TemporaryDirectory() as folder:
        if sys.argv[1] == "--look":
            look(tab, Path(sys.argv[2]), map(Path, sys.argv[3:]))
            return
        wrong = []
        for ranks in RANKS:
            report = Path(folder) / f"ranks_{ranks}.html"
            subprocess.run([sys.argv[1], str(ranks), str(report)], check=True)
            wrong += check(tab, report, dispatch_wrong, may_be_still=ranks == 1)
        for trace in TRACES:
            report = Path(folder) / f"{'_'.join(map(str, trace))}.html"
            subprocess.run([sys.argv[2], *map(str, trace), str(report)], check=True)
            wrong += check(tab, report, trace_wrong)
    for problem in wrong:
        print(problem)
    print(f"pictures: {len(RANKS) + len(TRACES)} reports on {len(SCREENS)} screens, light and "
          f"dark, {len(wrong)} problems")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
