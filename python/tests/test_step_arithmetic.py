"""Check and arithmetic agree on the plan of a training step.

`workers/step_ranks.py` executes a plan as it is written, on processes with gloo, in float64, and
compares the gradients that each rank updates its weights with with those of one process. `check` is
the other witness: of planted mistakes it finds those that change the numbers, and names the factor.
"""

from __future__ import annotations

import dataclasses
import fractions
import re
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

from step_layouts import (  # noqa: E402
    DENSE, LAYOUTS, MAX_ERROR, SP, Layout, assert_agrees, execute, job, max_error, write)

def _replaced(old: str, new: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        changed = re.sub(old, new, text, flags=re.MULTILINE)
        assert changed != text, f"the plan has no {old}"
        return changed

    return edit


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of the plan of SMALL: a mistake, or another way to the same gradients."""

    name: str
    edit: Callable[[str], str]
    is_mistake: bool = True  # says check
    factor: float | None = None  # by which a gradient is wrong
    differs: bool | None = None  # do the numbers; as a rule, those of a mistake


SMALL = Layout("tp2-sp-dp2", 4, dataclasses.replace(DENSE, layers=1), SP, samples=4)

CHANGES = [
    Change("half the scale",
           _replaced(r"(g_mlp\[q \+1\] over dp/gradients scale) 1/4", r"\1 1/8"), factor=1 / 2),
    Change("no scale", _replaced(r"(g_head\[0 \+1\] over dp/gradients) scale 1/4", r"\1"),
           factor=4),
    Change("a mean over two groups",
           _replaced(r"(g_attention_norms\[q \+1\] over tp/norms)", r"\1 scale 1/2"), factor=1 / 2),
    Change("norms not summed over the tensor group",
           _replaced(r"^ *@net all_reduce g_attention_norms\[q \+1\] over tp/norms (.*)\n( *.*)$",
                     r"\2 \1")),
    Change("weights of other ranks summed", _replaced(r"(g_mlp\[q \+1\] over) dp", r"\1 tp")),
    Change("summed twice",
           _replaced(r"(@net all_reduce g_mlp\[q \+1\] over dp/gradients) (.*)$",
                     r"\1 \2\n\1")),
    # `check` counts contributions, whatever their scale.
    Change("the mean of equal gradients",
           _replaced(r"(@net all_reduce g_mlp\[q \+1\] over dp/gradients) (.*)$",
                     r"\1 \2\n\1 scale 1/2"), differs=False),
    Change("the maximum", _replaced(r"(g_mlp\[q \+1\] over dp/gradients)", r"\1 operator max")),
    Change("a sum over the wrong group",
           _replaced(r"(reduce_scatter part to e over) tp(\n.*\n *reads e = PA)", r"\1 dp\2")),
    Change("tokens of the wrong group",
           _replaced(r"(all_gather x\[kept\*3\+2 \+1\] to full over) tp", r"\1 dp")),
    Change("tokens of before the norm",
           _replaced(r"(all_gather x)\[kept\*3\+2 \+1\]( to full over tp)", r"\1[kept*3+1 +1]\2")),
    Change("a gradient that is not zero at first",
           _replaced(r"^ *compute zero\n *writes g_mlp\[.*\n", "")),
    Change("summed before it is computed",
           _replaced(r"(g_attention\[q \+1\] over dp/gradients.*) after y\[slot,k\]", r"\1")),
    Change("one sum over both groups",
           _replaced(r"^ *@net all_reduce g_attention_norms\[q \+1\] over tp/norms (.*)\n"
                     r"( *.* g_attention_norms\[q \+1\] over) dp(.*)$", r"\2 (dp, tp)\3 \1"),
           is_mistake=False),
    Change("scaled in the first of two sums",
           _replaced(r"(g_attention_norms\[q \+1\] over tp/norms)(.*\n.*) scale 1/4",
                     r"\1 scale 1/4\2"), is_mistake=False),
    Change("half of the scale in each of two sums",
           _replaced(r"(g_attention_norms\[q \+1\] over tp/norms)(.*\n.*) scale 1/4",
                     r"\1 scale 1/2\2 scale 1/2"), is_mistake=False),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory, command):
    """The report of check and what the ranks found, for each change. All in the same processes."""
    reports, jobs = [], []
    for change in CHANGES:
        plan = write(SMALL, tmp_path_factory.mktemp("change"), command)
        plan.write_text(change.edit(plan.read_text()))
        reports.append(command("check", plan))
        jobs.append(job(plan, SMALL, command))
    return dict(zip((c.name for c in CHANGES), zip(reports, execute(jobs), strict=True),
                    strict=True))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_check_finds_what_changes_the_gradients(change, found):
    checked, ranks = found[change.name]
    assert checked.returncode == (1 if change.is_mistake else 0), checked.stdout
    if change.is_mistake if change.differs is None else change.differs:
        assert not max_error(ranks) < 1e-3
    else:
        assert max_error(ranks) < MAX_ERROR


@pytest.mark.parametrize("change", [c for c in CHANGES if c.factor], ids=lambda change: change.name)
def test_check_names_the_factor(change, found):
    checked, ranks = found[change.name]
    required, has = re.search(r"at scale ([\d/]+), and finds it at ([\d/]+)",
                              checked.stdout).groups()
    assert fractions.Fraction(has) / fractions.Fraction(required) == change.factor
    wrong = {name: ratio for rank in ranks for name, ratio in rank.ratios.items()
             if rank.gradients[name] > MAX_ERROR}
    assert len(wrong) == 1
    assert wrong.popitem()[1] == pytest.approx(change.factor, rel=MAX_ERROR)


@pytest.mark.parametrize("name", ["alone", "tp2-sp-pp2-dp2"])
def test_a_plan_computes_what_one_process_does(name, tmp_path, command):
    """For all other layouts: test_step_layouts.py."""
    assert_agrees(next(layout for layout in LAYOUTS if layout.name == name), tmp_path, command)
