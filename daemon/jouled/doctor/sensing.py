"""What measures: the total rail, how often its sensor has a new reading, heat and what throttles."""

from __future__ import annotations

import numpy as np

from jouled.board.thermal import read_thermal
from jouled.doctor.check import Check, ok, warning
from jouled.doctor.patient import Patient
from jouled.errors import BusyError, SensorError
from jouled.job.cancel import Cancellation
from jouled.job.ground import Opened, check_gpu_is_free, open_meter
from jouled.workload.runner import Arrival
from jouletune.trace import PowerTrace, total_power_w

_LOOK_S = 4.0
_LOOK_HZ = 20.0
_LEAST_CHANGES = 3
_FAN_CONF = "/etc/nvfancontrol.conf"
_FAN_KEY = "FAN_DEFAULT_PROFILE"


def meter(patient: Patient) -> tuple[Check, ...]:
    """The total rail with what it reads now, its sensor's pace, and who else loads the GPU.

    Raises as `open_meter`, SensorError.
    """
    opened = open_meter(patient.site.host, patient.site.request(Arrival()), patient.board)
    try:
        trace = _look(patient, opened)
        busy = _gpu(patient, opened)
    finally:
        opened.meter.close()
    return _rails(opened, trace), _pace(patient, opened, trace), busy


def _gpu(patient: Patient, opened: Opened) -> Check:
    try:
        check_gpu_is_free(patient.site.host, opened.observer, Cancellation())
    except BusyError as error:
        text = str(error).replace(" before the job has begun", "")
        return warning("gpu", f"{text}; a job begins only when it is free", error.hint)
    return ok("gpu", "nobody else loads it")


def _look(patient: Patient, opened: Opened) -> PowerTrace:
    clock, external_w = patient.site.host.clock, patient.config.board.external_w
    sampling = opened.meter.sampling(clock, rate_hz=_LOOK_HZ, external_w=external_w)
    sampling.start()
    try:
        clock.sleep(_LOOK_S)
    finally:
        trace = sampling.stop()
    if trace.t_s.size == 0:
        raise SensorError(
            f"{opened.meter.rail}: no reading in {_LOOK_S:g} s: {sampling.last_error}",
            hint="see what the kernel says of its sensors: sudo dmesg | grep -i ina",
        )
    return trace


def _rails(opened: Opened, trace: PowerTrace) -> Check:
    watts = total_power_w(trace)
    text = f"{opened.meter.rail} ({opened.meter.coverage}), {watts.mean():.1f} W now"
    if (watts <= 0.0).any():
        hint = "another board.meter or board.total_rails; ls /sys/class/hwmon"
        raise SensorError(f"{opened.meter.rail} reads 0 W: it is no measurement", hint=hint)
    return warning("rails", f"{text}: {opened.why}") if opened.warnings else ok("rails", text)


def _pace(patient: Patient, opened: Opened, trace: PowerTrace) -> Check:
    """How long the sensor averages, and how far apart its readings are seen to be.

    On a board at rest a coarse reading may stand still: that is no fault.
    """
    text = f"averages {opened.meter.averaging_s:g} s, read at {patient.config.job.sample_rate_hz:g} Hz"
    if trace.lost:
        share = trace.lost / (trace.lost + trace.t_s.size)
        return warning("sensor", f"{100 * share:.0f} % of the reads failed in {_LOOK_S:g} s", "sudo dmesg | tail")
    changed_s = trace.t_s[1:][np.diff(total_power_w(trace)) != 0.0]
    if changed_s.size < _LEAST_CHANGES:
        return ok("sensor", f"{text}, steady for {_LOOK_S:g} s (at rest)")
    return ok("sensor", f"{text}, new readings {np.diff(changed_s).min():.2f} s apart")


def heat(patient: Patient) -> Check:
    """Temperatures, what throttles now, and what the fan is told."""
    board = patient.board
    assert board is not None
    thermal = read_thermal(patient.sysfs, ignored_cooling=board.file.cooling_ignored)
    if thermal.hottest_c is None:
        return warning("heat", "no temperature can be read: board.max_temp_c guards nothing, the kernel's trips do")
    if thermal.alarms:
        return warning("heat", f"an over-current alarm stands: {', '.join(thermal.alarms)}", "sudo dmesg | tail")
    if thermal.throttling:
        text = f"{thermal.hottest_c:.0f} °C and throttled by {', '.join(thermal.throttling)}: let it cool before a job"
        return warning("heat", text)
    limit_c = patient.config.when.max_start_temp_c
    if thermal.hottest_c > limit_c:
        return warning("heat", f"{thermal.hottest_c:.0f} °C, above when.max_start_temp_c = {limit_c:g}: let it cool")
    counted = [f"{source} {count}" for source, count in sorted(thermal.over_current.items()) if count]
    events = f"; over-current events since boot: {', '.join(counted)}" if counted else ""
    return ok("heat", f"{thermal.hottest_c:.0f} °C, nothing throttles{_fan(patient)}{events}")


def _fan(patient: Patient) -> str:
    lines = (line.split() for line in patient.text(_FAN_CONF).splitlines())
    profiles = [words[1] for words in lines if len(words) > 1 and words[0] == _FAN_KEY]
    return f"; fan profile {profiles[0]}" if profiles else ""
