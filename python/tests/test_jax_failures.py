"""shiplap.jax when a process dies during a step: the survivors report which one, and exit."""

import pytest

pytest.importorskip("jax")

from workers.jax_victims import death  # noqa: E402

SEED = 20261116
# Where JAX's own coordinator is in a process that dies, or is not recoverable: see jax_victims.
ENDED_BY_JAX = -6


def told(end):
    return f"seed {SEED}, rank {end.rank}: {end}"


def check_named(story, victim, error, within):
    for end in story.survivors:
        assert end.error == error and end.names(victim), told(end)
        assert end.after < within, told(end)


def check_ended(story, codes=(1,)):
    """They exit by themselves, not by JAX, and do not hang first."""
    for end in story.survivors:
        assert end.code in codes, told(end)


@pytest.mark.parametrize("size,victim,way,code", [
    (3, 1, "SIGKILL", -9), (4, 0, "SIGKILL", -9), (4, 2, "exit", 7), (3, 1, "raise", 1)])
def test_survivors_raise_who_died_and_end_by_themselves(size, victim, way, code):
    story = death(size, victim, way, seed=SEED + victim, timeout=10)
    check_named(story, victim, "RankFailed", 2)
    check_ended(story)
    assert story.victim.code == code, told(story.victim)


def test_a_process_that_stands_still_is_named_when_the_deadline_has_passed():
    timeout = 2
    story = death(3, 2, "SIGSTOP", seed=SEED, timeout=timeout)
    # A rank that waits for a rank that waits for the dead one reports it as well.
    for end in story.survivors:
        assert end.error in ("CommTimeoutError", "RankFailed") and end.names(2), told(end)
        assert end.after < timeout + 3, told(end)
    check_ended(story)


def test_without_diagnosed_it_is_an_error_of_jax_with_the_same_words():
    story = death(3, 2, "SIGKILL", seed=SEED, timeout=10, diagnosed=False)
    check_named(story, 2, "JaxRuntimeError", 2)
    for end in story.survivors:
        assert "ABORTED: error[D302]: rank 2 failed" in end.text, told(end)
    check_ended(story)


def test_with_the_coordinator_in_process_0_the_death_of_another_is_raised_too():
    story = death(3, 1, "SIGKILL", seed=SEED, timeout=10, outside=False)
    check_named(story, 1, "RankFailed", 2)
    check_ended(story, (1, ENDED_BY_JAX))


def test_when_the_coordinator_dies_nobody_hangs_and_who_can_speak_says_who_it_was():
    story = death(3, 0, "SIGKILL", seed=SEED, timeout=10, outside=False)
    check_ended(story, (1, ENDED_BY_JAX))
    for end in story.survivors:
        if end.error:
            assert end.error == "RankFailed" and end.names(0), told(end)
        else:
            assert "JAX distributed service detected fatal errors" in end.output, told(end)
