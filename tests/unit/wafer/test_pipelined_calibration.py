"""The pipelined cost model answers the published compile reports as its calibration says."""

import pytest
from tools import calibrate_pipelined as calibration

from cerebras_wafer.compiler.placement.constants import load_constants

CONSTANTS = load_constants()


def test_rates_that_were_held_out_have_the_stated_error():
    errors = calibration.rate_errors(CONSTANTS, calibration.held_out())
    mean, worst = calibration.summary(errors)
    assert (mean, worst) == pytest.approx((CONSTANTS.mean_error, CONSTANTS.worst_error), abs=0.001)
    assert mean <= 0.05
    assert worst <= 0.15


def test_models_that_do_not_fill_the_fabric_stop_at_the_rate_of_the_loss():
    at_floor = [point for point in calibration.points() if point.at_floor]
    assert len(at_floor) == 9
    errors = calibration.rate_errors(CONSTANTS, at_floor)
    assert max(map(abs, errors.values())) < 0.005


def test_models_that_do_not_fill_the_fabric_use_the_published_share_of_it():
    mean, worst = calibration.summary(calibration.active_errors(CONSTANTS))
    assert mean <= 0.05
    assert worst <= 0.07


def test_kernels_of_the_reports_have_the_pes_that_the_model_gives_them():
    held_out = calibration.summary(calibration.kernel_errors(CONSTANTS, fitted=False))
    fitted = calibration.summary(calibration.kernel_errors(CONSTANTS, fitted=True))
    assert held_out[0] <= 0.07
    assert held_out[1] <= 0.15
    assert fitted[0] <= 0.03


def test_the_committed_constants_of_work_are_those_of_the_fit():
    fitted = calibration.fit_work(CONSTANTS)
    for name in calibration.LINEAR:
        assert getattr(fitted, name) == pytest.approx(getattr(CONSTANTS, name), rel=1e-6)


def test_no_fitted_point_is_judged_by():
    judged = {point.workload for point in calibration.held_out()}
    assert judged == {f"encoder-decoder-{n}-{n}" for n in (30, 48, 60)} | {"gpt2-small"}
    assert judged.isdisjoint({calibration.READ_OFF, *calibration.DEEP_MODELS})
