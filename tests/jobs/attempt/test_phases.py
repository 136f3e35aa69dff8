"""The action that is due in each phase of an attempt, computed without processes or a clock."""

from dataclasses import replace

import pytest

from nbtrain.jobs.attempt.phases import Action, Observed, Phase, decide, patience_seconds, phase_of

NOW = 1000.0
QUIET = Observed(patience_seconds=60.0, training=True)


@pytest.mark.parametrize(
    ("observed", "phase"),
    [
        (QUIET, Phase.RUNNING),
        (replace(QUIET, hangs=True), Phase.RUNNING),
        (replace(QUIET, failed_at=1.0), Phase.LOSING_PEERS),
        (replace(QUIET, stop_asked_at=1.0), Phase.STOPPING),
        # A stop outranks a failure: the ranks should save if they can.
        (replace(QUIET, stop_asked_at=1.0, failed_at=1.0), Phase.STOPPING),
        (replace(QUIET, launcher_ended=True), Phase.ENDED),
        (replace(QUIET, launcher_ended=True, stop_asked_at=1.0), Phase.ENDED),
        (replace(QUIET, launcher_ended=True, launcher_killed_at=1.0), Phase.STOPPING),
        (replace(QUIET, launcher_ended=True, launcher_killed_at=1.0, killed=True), Phase.ENDED),
        (replace(QUIET, launcher_ended=True, launcher_killed_at=1.0, processes_left=False), Phase.ENDED),
    ],
)
def test_the_phase_follows_from_what_is_seen(observed, phase):
    assert phase_of(observed) is phase


def test_nothing_is_due_while_all_is_well_or_over():
    assert decide(QUIET, NOW) is Action.KEEP
    assert decide(replace(QUIET, launcher_ended=True, hangs=True, stop_asked_at=1.0), NOW) is Action.KEEP


def test_what_is_not_observed_is_not_assumed():
    """An attempt about which nothing has been observed counts as running, with nothing to save."""
    assert phase_of(Observed(60.0)) is Phase.RUNNING
    assert decide(Observed(60.0, stop_asked_at=NOW), NOW) is Action.SIGNAL
    killed = Observed(60.0, launcher_ended=True, launcher_killed_at=NOW)
    assert decide(killed, NOW + 5.1) is Action.KILL


def test_a_hang_is_ended_at_once():
    assert decide(replace(QUIET, hangs=True), NOW) is Action.KILL


@pytest.mark.parametrize(("shutdown", "grace"), [(60.0, 10.0), (4.0, 4.0)])
def test_peers_of_a_dead_rank_have_a_grace(shutdown, grace):
    """After a rank has died, its peers have ten seconds, or the time for a stop if that is shorter."""
    observed = replace(QUIET, patience_seconds=shutdown, failed_at=NOW)
    assert decide(observed, NOW + grace) is Action.KEEP
    assert decide(observed, NOW + grace + 0.1) is Action.KILL


@pytest.mark.parametrize(
    ("limit", "save", "patience"), [(60.0, 0.0, 60.0), (60.0, 25.0, 60.0), (60.0, 45.0, 90.0)]
)
def test_a_stop_waits_for_a_save_as_long_as_a_save_takes(limit, save, patience):
    """A stop waits twice as long as the longest save so far, if that is longer than the limit."""
    observed = replace(QUIET, patience_seconds=patience_seconds(limit, save), stop_asked_at=NOW)
    assert decide(observed, NOW + patience - 1) is Action.KEEP
    assert decide(observed, NOW + patience) is Action.SIGNAL


def test_a_stop_is_a_request_then_a_signal_then_a_kill():
    """A stop is first a request in control/, then a signal when the time for saving is over, and 3 s later a
    kill.
    """
    asked = replace(QUIET, stop_asked_at=NOW)
    assert decide(asked, NOW + 59.9) is Action.KEEP
    assert decide(asked, NOW + 60.0) is Action.SIGNAL
    signalled = replace(asked, signalled_at=NOW + 60.0)
    assert decide(signalled, NOW + 63.0) is Action.KEEP
    assert decide(signalled, NOW + 63.1) is Action.KILL


def test_a_stop_before_training_needs_no_time_to_save():
    """A stop before training is a signal immediately, because a rank that is importing reads no requests;
    ranks are killed after 5 s.
    """
    asked = replace(QUIET, training=False, stop_asked_at=NOW)
    assert decide(asked, NOW) is Action.SIGNAL
    signalled = replace(asked, signalled_at=NOW)
    assert decide(signalled, NOW + 4.9) is Action.KEEP
    assert decide(signalled, NOW + 5.0) is Action.KILL
    # It has begun to train meanwhile: now there is something to save.
    assert decide(replace(signalled, training=True), NOW + 59.9) is Action.KEEP
    assert decide(replace(signalled, patience_seconds=1.0), NOW + 3.1) is Action.KILL


def test_a_stop_at_once_kills():
    assert decide(replace(QUIET, stop_asked_at=NOW, stop_now=True), NOW) is Action.KILL
    # Also while the ranks of a killed launcher are saving.
    dying = replace(QUIET, launcher_ended=True, launcher_killed_at=NOW, stop_asked_at=NOW, stop_now=True)
    assert decide(dying, NOW) is Action.KILL


@pytest.mark.parametrize(("training", "patience"), [(True, 60.0), (False, 5.0)])
def test_the_ranks_of_a_killed_launcher_have_the_time_of_a_stop(training, patience):
    dying = replace(QUIET, training=training, launcher_ended=True, launcher_killed_at=NOW)
    assert decide(dying, NOW + patience - 0.1) is Action.KEEP
    assert decide(dying, NOW + patience) is Action.KILL


def test_a_save_that_goes_on_is_not_killed_before_the_cap():
    """Each sign that a save makes progress restarts the time for saving, up to 10 times that time in
    total.
    """
    asked = replace(QUIET, stop_asked_at=NOW, signalled_at=NOW)
    assert decide(replace(asked, saving_at=NOW + 50), NOW + 109) is Action.KEEP
    assert decide(replace(asked, saving_at=NOW + 50), NOW + 110) is Action.KILL
    assert decide(replace(asked, saving_at=NOW + 599), NOW + 599.9) is Action.KEEP
    assert decide(replace(asked, saving_at=NOW + 599), NOW + 600) is Action.KILL
    # Signs from before the request do not extend it.
    assert decide(replace(asked, saving_at=NOW - 30), NOW + 60) is Action.KILL
