"""The loss scale of fp16 after a resume: the run's settings apply to the saved scale."""

from types import SimpleNamespace

import pytest

from nbtrain.checkpoint.reshape import keep_loss_scaler
from nbtrain.parallel.startup import prepare_deepspeed

prepare_deepspeed("cpu")
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler  # noqa: E402


def dynamic(scale: float, window: int = 1000, least: float = 1.0, hysteresis: int = 2) -> DynamicLossScaler:
    return DynamicLossScaler(scale, window, least, hysteresis, False)


def moved(scaler: DynamicLossScaler) -> DynamicLossScaler:
    scaler.cur_scale, scaler.cur_iter, scaler.last_overflow_iter, scaler.cur_hysteresis = 512.0, 70, 65, 1
    return scaler


def test_equal_settings_go_on_as_they_were():
    saved, optimizer = moved(dynamic(65536.0)), SimpleNamespace()
    keep_loss_scaler(optimizer, dynamic(65536.0), saved)
    assert vars(optimizer.loss_scaler) == vars(saved) and optimizer.dynamic_loss_scale


def test_the_scale_halves_as_the_field_says(monkeypatch):
    """With hysteresis 2, the first overflow is tolerated and each further one halves the scale.

    The tolerance is restored when the scale doubles.
    """
    monkeypatch.setattr("deepspeed.comm.get_rank", lambda: 1)  # rank 0 logs it
    scaler, scales = dynamic(64.0, window=2), []
    for overflow in (True, False, True, False, True, False, False, False, True, True):
        scaler.update_scale(overflow)
        scales.append(scaler.cur_scale)
    assert scales == [64.0, 64.0, 32.0, 32.0, 16.0, 16.0, 16.0, 32.0, 32.0, 16.0]


def test_changed_settings_are_the_runs():
    optimizer = SimpleNamespace()
    keep_loss_scaler(
        optimizer, dynamic(65536.0, window=10, least=1024.0, hysteresis=1), moved(dynamic(65536.0))
    )
    scaler = optimizer.loss_scaler
    assert (scaler.scale_window, scaler.min_scale, scaler.delayed_shift) == (10, 1024.0, 1)
    assert (scaler.cur_scale, scaler.cur_iter, scaler.last_overflow_iter) == (1024.0, 70, 65)


@pytest.mark.parametrize(
    ("own", "saved", "scale"),
    [
        # Settings that are advised after overflows: a lower scale, or a dynamic one.
        (LossScaler(1024.0), LossScaler(65536.0), 1024.0),
        (dynamic(4096.0), LossScaler(65536.0), 4096.0),
        (LossScaler(8.0), moved(dynamic(65536.0)), 8.0),
    ],
)
def test_a_fixed_scale_is_the_runs_and_a_dynamic_one_after_it_begins_anew(own, saved, scale):
    optimizer = SimpleNamespace()
    keep_loss_scaler(optimizer, own, saved)
    assert optimizer.loss_scaler is own and own.cur_scale == scale
    assert optimizer.dynamic_loss_scale == own.dynamic
