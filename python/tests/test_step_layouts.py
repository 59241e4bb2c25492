"""The plans of all layouts, executed with real numbers: as test_step_arithmetic.py, and longer."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from step_layouts import LAYOUTS, assert_agrees  # noqa: E402


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_plan_computes_what_one_process_does(layout, tmp_path, command):
    assert_agrees(layout, tmp_path, command)
