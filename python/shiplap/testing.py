"""Test helpers: assert that a plan is sound.

A team that keeps its schedule in a file, or generates it, can check it in its test suite::

    from shiplap.testing import assert_sound

    def test_schedule():
        assert_sound("schedules/dualpipe_8.csv")
"""

from __future__ import annotations

from collections.abc import Collection

from shiplap._results import Report
from shiplap._verbs import Rules, Sends, Subject, check


def assert_sound(
    plan: Subject,
    *,
    rules: Rules = "any",
    sends: Sends = "both",
    eager: int | None = None,
    warnings: bool = True,
    allow: Collection[str] = (),
) -> Report:
    """Fails if ``check`` has findings; the message lists every finding with its witness.

    ``plan`` is a Plan, the result of ``train``, or a file name: a ``.plan`` or a pipeline schedule
    of torch as ``.csv``. ``rules``, ``sends`` and ``eager`` are those of ``check``. Findings whose
    code is in ``allow`` are accepted; without ``warnings``, only errors count.

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
        details = "\n".join(str(finding) for finding in found)
        raise AssertionError(f"{report.plan.name} {verdict} ({codes})\n{details}")
    return report
