"""For tests: that a plan is sound, and stays so.

A team that keeps its schedule in a file, or makes it in a function, checks it with the rest of its
tests::

    from shiplap.testing import assert_sound

    def test_schedule():
        assert_sound("schedules/dualpipe_8.csv")
"""

from __future__ import annotations

from collections.abc import Collection

from shiplap._shiplap import Report
from shiplap._verbs import Subject, check


def assert_sound(
    plan: Subject,
    *,
    rules: str = "any",
    sends: str = "both",
    eager: int | None = None,
    warnings: bool = True,
    allow: Collection[str] = (),
) -> Report:
    """Fails unless ``check`` finds nothing; then the message has every finding, with its witness.

    ``plan`` is a Plan, what ``train`` returned, or the name of a file: a ``.plan`` or a pipeline
    schedule of torch as ``.csv``. ``rules``, ``sends`` and ``eager`` are those of ``check``.
    Findings whose code is in ``allow`` are accepted; without ``warnings`` only errors count.

    >>> from shiplap.testing import assert_sound
    >>> assert_sound(shiplap.train("fsdp", ranks=4, batch=4))
    <Report fsdp on 4 ranks: sound, 0 findings>
    """
    __tracebackhide__ = True
    if isinstance(allow, str):
        raise TypeError("allow: expected several codes, such as {'D731'}")
    report = check(plan, rules=rules, sends=sends, eager=eager)
    found = [
        finding
        for finding in report.findings
        if finding.code not in allow and (warnings or finding.severity == "error")
    ]
    if found:
        codes = ", ".join(sorted({finding.code for finding in found}))
        verdict = "has findings" if report.sound else "is not sound"
        words = "\n".join(str(finding) for finding in found)
        raise AssertionError(f"{report.plan.name} {verdict} ({codes})\n{words}")
    return report
