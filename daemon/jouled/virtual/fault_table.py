"""Every fault that a virtual board knows by name (JETSON 10.4, FIELD-PROBLEMS)."""

from __future__ import annotations

from collections.abc import Mapping

from jouled.virtual import mischief
from jouled.virtual.fault import GOOD, Effect, Fault, always, edited, errno_name, number, one_of

_CAPS = {
    "gpu": ("*/devfreq/*/max_freq",),
    "cpu": ("*/cpufreq/policy*/scaling_max_freq",),
    "emc": ("*/nvpmodel_clk_cap/emc", "*/nvpmodel_emc_cap/emc_iso_cap"),
}
_STRANGER = "CLIENT PROCESS PID SIZE\nuser python3 4711 524288K"
_IN_A_TRIAL_S = 100.0  # the reference is measured by then


def _second_writer(who: str) -> Effect:
    hands: dict[str, Mapping[str, object]] = {
        "cpu": {"write": ["/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq", "960000"]},
        "core": {"write": ["/sys/devices/system/cpu/cpu3/online", "0"]},
        "jetson_clocks": {"run": ["jetson_clocks"]},
        "service": {"service": True},
    }
    return Effect(once=(hands[one_of(who, tuple(hands))],))


def _over_current(source: str) -> Effect:
    return Effect({"oc_count": {one_of(source, ("oc2", "oc3")): 41}})


_APPLY = GOOD | {"board_fault", "unstable"}
_DISTURBED = GOOD | {"unstable", "rolled_back"}
_DIFFERS = "(apply_failed: |not as found: ).*wanted .*, got "
_FAULTS = (
    # --- nvpmodel
    Fault(
        "nvpmodel-prompts",
        "nvpmodel asks for a reboot in any mode, and does nothing without a YES",
        always(prompt=True),
        _APPLY,
        says="DO YOU WANT TO REBOOT NOW",
        problems=(1,),
    ),
    Fault(
        "nvpmodel-chroot",
        "nvpmodel believes that it runs in a chroot: exit code 0, nothing done",
        always(chroot=True),
        _APPLY,
        says="Running in chroot, ignoring request",
        problems=(2,),
    ),
    Fault(
        "nvpmodel-hangs",
        "nvpmodel stands still for good",
        lambda n: Effect({"hang": {"nvpmodel": int(number(n))}}),
        _APPLY,
        says="did not end within 10 s and was killed",
        takes="after so many writes",
        argument="0",
        problems=(22,),
    ),
    Fault(
        "nvpmodel-slow",
        "each nvpmodel takes so much longer",
        lambda n: Effect({"slow_s": {"nvpmodel": number(n)}}),
        takes="seconds",
        argument="6",
        problems=(22,),
    ),
    Fault(
        "nvpmodel-absent",
        "there is no nvpmodel on PATH",
        always(absent=["nvpmodel"]),
        _APPLY,
        says="nvpmodel: no such program",
    ),
    Fault(
        "nvpmodel-busy",
        "the kernel refuses nvpmodel's writes with EBUSY; what was written before stays",
        lambda n: Effect({"write_errors": [{"by": "nvpmodel", "errno": "EBUSY", "after": int(number(n))}]}),
        _APPLY,
        says="failed to set power mode",
        takes="after so many writes",
        argument="3",
        problems=(2, 4),
    ),
    Fault(
        "nvpmodel-noise",
        "nvpmodel mixes warnings and errors into what it prints",
        always(fan_warning=True, errors_to_stdout=True),
        problems=(6,),
    ),
    Fault(
        "service-rerun",
        "nvpmodel.service runs again in mid-job and sets the stock caps anew",
        lambda _: _second_writer("service"),
        _DISTURBED,
        says="mode_changed: .*wanted .*, got ",
        after_s=_IN_A_TRIAL_S,
        problems=(42,),
    ),
    # --- the kernel's answers
    Fault(
        "wrong-rounding",
        "a written cap lands one table step too high",
        lambda domain: Effect({"wrong_rounding": {one_of(domain, tuple(_CAPS)): 1}}),
        _APPLY,
        says=_DIFFERS,
        takes="gpu, cpu or emc",
        argument="gpu",
        problems=(2, 12),
    ),
    Fault(
        "write-ignored",
        "writes of a cap succeed and change nothing",
        lambda domain: Effect({"ignore_writes": list(_CAPS[one_of(domain, tuple(_CAPS))])}),
        _APPLY,
        says=_DIFFERS,
        takes="gpu, cpu or emc",
        argument="gpu",
        problems=(2,),
    ),
    Fault(
        "sysfs-read-only",
        "no knob can be written at all, as in a container",
        always(write_errors=[{"path": "/sys/*", "errno": "EROFS"}]),
        _APPLY,
        says="Read-only file system",
    ),
    Fault(
        "policy-vanishes",
        "a CPU policy's directory is gone for a moment, as while its cores go off and on",
        always(hidden=["*/cpufreq/policy4", "*/cpufreq/policy4/*", "*/cpu[4-7]/cpufreq*"]),
        _APPLY | _DISTURBED,
        says="policy4.*: No such file or directory",
        is_quiet=True,
        after_s=_IN_A_TRIAL_S,
        for_s=30.0,
        problems=(17,),
    ),
    Fault(
        "gpu-absent",
        "the GPU's devfreq device is not there (yet)",
        always(hidden=["/sys/class/devfreq/*", "*/devfreq/*", "*/devfreq_dev/*"]),
        _APPLY | _DISTURBED,
        says="no GPU devfreq device was found .*: the GPU clock stays|devfreq/.*: No such file|GPU cannot be seen",
        problems=(3, 18),
    ),
    Fault(
        "gpu-no-of-node",
        "the GPU's device shows no device tree node",
        always(hidden=["*/of_node/name"]),
        problems=(18,),
    ),
    Fault(
        "mask-differs",
        "the kernel refused the TPC mask at boot: the board has another one than its mode wants",
        edited(mischief.leave_another_mask),
        says="wants mask .*, the board has .*; jouled leaves it so",
        problems=(4,),
    ),
    Fault(
        "jetson-clocks-on",
        "jetson_clocks was on before the job",
        edited(mischief.lock_clocks),
        problems=(10, 11),
    ),
    Fault(
        "jetson-clocks-at-boot",
        "somebody's boot script runs jetson_clocks while the job is running",
        lambda _: _second_writer("jetson_clocks"),
        _DISTURBED,
        says="mode_changed: .*wanted .*, got ",
        after_s=30.0,
        problems=(9,),
    ),
    Fault(
        "second-writer",
        "somebody else turns a knob in mid-trial",
        _second_writer,
        _DISTURBED,
        says="mode_changed: .*wanted .*, got ",
        takes="cpu, core, jetson_clocks or service",
        argument="cpu",
        after_s=_IN_A_TRIAL_S,
        problems=(42,),
    ),
    # --- the stock conf
    Fault("conf-id-gap", "the conf's ids have gaps", edited(mischief.leave_gaps_between_ids), problems=(5,)),
    Fault(
        "conf-off-table",
        "the conf caps the GPU at a clock that it cannot run at",
        edited(mischief.cap_off_table),
        problems=(2, 12),
    ),
    Fault(
        "conf-unknown-param",
        "the conf sets a parameter that it does not define",
        edited(mischief.set_unknown_param),
        frozenset({"board_fault"}),
        says="wanted the name of a PARAM section above, got .*GPU_TYPO",
        problems=(2,),
    ),
    Fault(
        "conf-of-other-board",
        "/etc/nvpmodel.conf is a bigger module's, as on a cloned image",
        edited(mischief.use_bigger_boards_conf),
        frozenset({"not_supported"}),
        says="switches on cpu31; this board has .* cores",
        problems=(7,),
    ),
    Fault(
        "conf-relinked", "the conf's link points to another file than before", edited(mischief.relink), problems=(7,)
    ),
    Fault(
        "status-lost",
        "nvpmodel's status file is gone",
        edited(mischief.lose_status),
        GOOD | {"not_supported"},
        says="nvpmodel has recorded no mode yet; its default",
        problems=(8,),
    ),
    # --- sensors
    Fault(
        "rail-renamed",
        "a rail of the total has another name than on this board",
        always(values={"*/in1_label": "VDD_NEW", "*/rail_name_0": "VDD_NEW"}),
        frozenset({"not_supported"}),
        says="the total rail .* cannot be measured: no ",
        problems=(13,),
    ),
    Fault(
        "rail-disabled",
        "a channel beside the total is switched off",
        always(read_errors={"*-0041/*in2_input": "ENODATA", "*-0041/*curr2_input": "ENODATA"}),
        problems=(14,),
    ),
    Fault(
        "sensor-error",
        "the total's first channel gives an error instead of a value",
        lambda name: Effect({"read_errors": {"*/in1_input": errno_name(name), "*/curr1_input": errno_name(name)}}),
        GOOD | {"board_fault", "unstable"},
        says="sensor_gap",
        takes="an errno",
        argument="EAGAIN",
        after_s=_IN_A_TRIAL_S,
        for_s=30.0,
        problems=(14,),
    ),
    Fault(
        "sensor-stalled",
        "every rail stands at one value",
        always(values={"*/in[123]_input": "5000", "*/curr[123]_input": "1000"}),
        GOOD | {"unstable", "board_fault"},
        says="sensor_stalled",
        problems=(21,),
    ),
    Fault(
        "sensor-zero",
        "every rail shows 0 A",
        always(values={"*/curr[123]_input": "0"}),
        _APPLY,
        says="sensor_zero",
        problems=(16,),
    ),
    Fault(
        "thermal-unreadable",
        "no temperature can be read",
        always(read_errors={"*thermal_zone*/temp": "EAGAIN"}),
        says="no temperature can be read here: board.max_temp_c guards nothing",
    ),
    Fault(
        "clock-garbled",
        "the GPU's current clock is no number",
        always(values={"*/devfreq/*/cur_freq": "banana"}),
        problems=(17,),
    ),
    Fault(
        "emc-ignores-cap",
        "the memory runs at its highest rate whatever its cap",
        always(values={"*/clk/emc/rate": "9999000000"}),
        _DISTURBED,
        says="clocks_moved",
        after_s=_IN_A_TRIAL_S,
        for_s=60.0,
    ),
    # --- heat and current
    Fault(
        "over-current",
        "over-current events in a trial",
        _over_current,
        _DISTURBED,
        says="throttled",
        takes="oc2 or oc3",
        argument="oc3",
        after_s=_IN_A_TRIAL_S,
        problems=(19,),
    ),
    Fault(
        "over-current-always",
        "over-current events all the time, as on an Orin Nano Super",
        lambda rate: Effect({"oc_rate_hz": {"oc3": number(rate)}}),
        _DISTURBED,
        says="over-current events a second in its own mode; that many are taken as normal|throttled",
        takes="events a second",
        argument="10",
        problems=(19,),
    ),
    Fault(
        "under-voltage",
        "the supply's voltage drops (OC1)",
        always(oc_count={"oc1": 3}),
        _DISTURBED,
        says="under-voltage .OC1. was counted 3 times",
        after_s=_IN_A_TRIAL_S,
    ),
    Fault(
        "throttled",
        "cooling devices slow the clocks down",
        always(values={"*/cooling_device*/cur_state": "1"}),
        _DISTURBED,
        says="throttled",
        after_s=_IN_A_TRIAL_S,
        for_s=60.0,
        problems=(19, 20),
    ),
    Fault(
        "hot",
        "the board is at 95 °C",
        always(values={"*/thermal_zone*/temp": "95000"}),
        _DISTURBED,
        says="95.0 °C, above board.max_temp_c",
        after_s=_IN_A_TRIAL_S,
        for_s=60.0,
    ),
    # --- the workload, and others on the GPU
    Fault(
        "workload-dies",
        "the runner ends by a signal",
        lambda n: Effect({"workload_dies_s": number(n)}),
        _DISTURBED | {"workload_failed"},
        says="workload_died",
        takes="seconds after the load began",
        argument="15",
        after_s=_IN_A_TRIAL_S,
        for_s=60.0,
    ),
    Fault(
        "workload-hangs",
        "the runner falls silent",
        lambda n: Effect({"workload_hangs_s": number(n)}),
        _DISTURBED | {"workload_failed"},
        says="workload_hung",
        takes="seconds after the load began",
        argument="15",
        after_s=_IN_A_TRIAL_S,
        for_s=60.0,
    ),
    Fault(
        "gpu-busy",
        "somebody else loads the GPU before the job begins",
        always(values={"*/load": "600"}),
        frozenset({"board_busy"}),
        says="the GPU is 60 % busy before the job has begun",
    ),
    Fault(
        "gpu-shared",
        "another process opens the GPU in mid-job",
        always(values={"*/nvmap/iovmm/clients": _STRANGER}),
        _DISTURBED,
        says="gpu_busy",
        after_s=_IN_A_TRIAL_S,
        for_s=60.0,
    ),
    # --- the files of jouled, and the power
    Fault(
        "ledger-torn",
        "the ledger's last line was cut off by a loss of power",
        edited(mischief.tear_ledger),
        says="ledger",
        problems=(25,),
    ),
    Fault("study-torn", "the study database is damaged", edited(mischief.tear_study), problems=(25,)),
    Fault(
        "board-resets",
        "the board loses its power in mid-job; exit code 137",
        lambda _: Effect(once=({"reset": True},)),
        frozenset({"interrupted"}),
        after_s=_IN_A_TRIAL_S,
        problems=(8, 25, 26),
    ),
)
FAULTS: Mapping[str, Fault] = {fault.name: fault for fault in _FAULTS}
