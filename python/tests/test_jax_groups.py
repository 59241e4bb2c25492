"""shiplap.jax: groups of rows, groups of ranks, and errors."""

import pytest

pytest.importorskip("jax")

from workers.jax_ranks import failures  # noqa: E402


@pytest.mark.parametrize("processes,devices,places", [
    (2, 1, ["checked", "local", "unchecked"]), (4, 1, ["local"]),
    (1, 4, ["unchecked", "checked"])])
def test_rows_are_multiplied_by_the_weights_of_their_group(processes, devices, places):
    wrong = failures("jax_experts:cases", processes, devices, places=places, seed=processes,
                     least=28)
    assert not wrong, wrong


def test_what_is_asked_for_in_other_words_and_what_is_refused():
    wrong = failures("jax_arguments:cases", 2, least=11)
    assert not wrong, wrong


@pytest.mark.parametrize("processes,devices", [(4, 1), (2, 2), (1, 4)])
def test_products_go_over_either_axis_of_a_mesh(processes, devices):
    wrong = failures("jax_arguments:meshes", processes, devices)
    assert not wrong, wrong


@pytest.mark.parametrize("processes,devices", [(2, 1), (2, 2)])
def test_a_failed_call_leaves_nothing_behind(processes, devices):
    wrong = failures("jax_arguments:after_failures", processes, devices)
    assert not wrong, wrong


def test_ranks_may_have_no_rows():
    wrong = failures("jax_arguments:empty", 2)
    assert not wrong, wrong


def test_what_would_give_wrong_numbers_or_a_wait_is_refused():
    wrong = failures("jax_errors:cases", 1, 4, least=8)
    assert not wrong, wrong
