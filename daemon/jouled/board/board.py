"""One board as found: who it is, what it can do, and the base mode whose limits hold."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from enum import Enum

from jouled.board.basemode import BaseMode, base_mode_as_is, base_mode_of
from jouled.board.discover import discover_domains, read_emc_table
from jouled.board.domains import Domains
from jouled.board.found import unknown_board
from jouled.board.host import Host
from jouled.board.identity import BoardFile, Identity, find_board_file, read_identity
from jouled.board.knobs import CONF_PATH_PATH
from jouled.board.nvpmodel import (
    CONF_PATH,
    NvpmodelConf,
    PowerModel,
    parse_conf,
    query,
    read_status,
)
from jouled.board.support import release_warning, tuning_refusal
from jouled.board.sysfs import Sysfs
from jouled.errors import (
    AbsentError,
    BrokenError,
    ForbiddenError,
    NotSupportedError,
    ToolAbsentError,
    UsageError,
)
from jouletune.space import PowerMode

log = logging.getLogger(__name__)

CURRENT = "current"


class About(Enum):
    """What a note is about."""

    BOARD = "board"
    CONF = "conf"
    MASK = "mask"
    CLOCKS = "clocks"
    KNOBS = "knobs"


@dataclass(frozen=True, slots=True)
class Note:
    """What speaks against nothing, and should be known all the same: a sentence."""

    about: About
    text: str


@dataclass(frozen=True, slots=True)
class Board:
    """`conf` is the stock conf at `conf_path`; `reference` the base mode as it sets it."""

    identity: Identity
    file: BoardFile
    domains: Domains
    base_mode: BaseMode
    conf_path: str
    conf_sha256: str
    reference: PowerMode
    conf: NvpmodelConf
    notes: tuple[Note, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """The notes as sentences."""
        return tuple(note.text for note in self.notes)

    def told(self, about: About) -> tuple[str, ...]:
        """The notes about one thing."""
        return tuple(note.text for note in self.notes if note.about is about)


def reference_of(base: BaseMode) -> PowerMode:
    """The base mode's own power mode."""
    return PowerMode(base.cores, base.cpu_cap_hz, base.gpu_cap_hz, base.emc_cap_hz)


def _read_stock_conf(sysfs: Sysfs) -> tuple[NvpmodelConf, str]:
    try:
        raw = sysfs.read_raw(CONF_PATH)
    except AbsentError as error:
        raise NotSupportedError(
            f"no nvpmodel conf: {error}", hint="install nvidia-l4t-nvpmodel; its nvpower.service makes the link at boot"
        ) from error
    return parse_conf(raw.decode("utf-8", "replace"), where=CONF_PATH), hashlib.sha256(raw).hexdigest()


def _status_id(host: Host, notes: list[Note]) -> int | None:
    try:
        return read_status(host.sysfs)
    except (ForbiddenError, BrokenError) as error:
        text = f"nvpmodel's status file gives no mode ({error}); nvpmodel -q is asked instead"
        notes.append(Note(About.CONF, text))
    try:
        answer = query(host.processes)
    except ToolAbsentError:
        return None
    return None if answer is None else answer[1]


def _current_model(host: Host, conf: NvpmodelConf, notes: list[Note]) -> PowerModel:
    number = _status_id(host, notes)
    if number is None:
        text = f"nvpmodel has recorded no mode yet; its default {conf.default} is taken"
        notes.append(Note(About.CONF, text))
        number = conf.default
    model = conf.by_id(number)
    if model is None:
        known = ", ".join(f"{known.id} {known.name}" for known in conf.models)
        raise NotSupportedError(
            f"the board is in nvpmodel mode {number}, which {CONF_PATH} does not hold (it has: {known})",
            hint="set a stock mode first: sudo nvpmodel -m ID",
        )
    return model


def _check_name(model: PowerModel, conf: NvpmodelConf, wanted: str) -> None:
    """The base mode is the one that the board is in; naming another cannot change that."""
    if wanted in (CURRENT, model.name):
        return
    other = conf.by_name(wanted)
    if other is None:
        known = ", ".join(known.name for known in conf.models)
        raise UsageError(f"base mode {wanted!r}: no such mode in {CONF_PATH}; it has: {known}")
    raise UsageError(
        f"base mode {wanted}: the board is in {model.name}",
        hint=f"switch first, where a reboot is no harm: sudo nvpmodel -m {other.id}",
    )


def _with_live_mask(sysfs: Sysfs, domains: Domains, base: BaseMode, notes: list[Note]) -> BaseMode:
    """The mask in force counts: at boot the conf's can be refused with EBUSY (JETSON 1.10)."""
    if domains.gpu is None or domains.gpu.mask_path is None:
        return base
    try:
        mask = sysfs.read_int(domains.gpu.mask_path)
    except (AbsentError, ForbiddenError):
        return base
    if base.mask is not None and mask != base.mask:
        text = f"{domains.gpu.mask_path}: {base.name} wants mask {base.mask}, the board has {mask}; "
        notes.append(Note(About.MASK, f"{text}jouled leaves it so (a reboot lets nvpmodel set it)"))
    return replace(base, mask=mask)


def _conf_in_use(sysfs: Sysfs) -> list[Note]:
    try:
        text = sysfs.read(CONF_PATH_PATH)
    except (AbsentError, ForbiddenError):
        return []
    if not text or sysfs.real(text).resolve() == sysfs.real(CONF_PATH).resolve():
        return []
    text = f"nvpmodel last used {text}; the base mode is taken from {CONF_PATH}, which the next boot uses"
    return [Note(About.CONF, text)]


def _fixed(sysfs: Sysfs, domains: Domains) -> list[Note]:
    found = []
    if domains.gpu is None:
        text = "no GPU devfreq device was found (it may appear after the first GPU use): the GPU clock stays fixed"
        found.append(Note(About.KNOBS, text))
    if domains.emc is None:
        found.append(Note(About.KNOBS, "no EMC cap was found: the memory clock stays fixed"))
    elif read_emc_table(sysfs) is None:
        text = "the memory's clock table is not readable here (debugfs, root): the board file's is used"
        found.append(Note(About.CLOCKS, text))
    return found


def discover(host: Host, base_mode: str = CURRENT) -> Board:
    """Find out everything about the board without writing anything.

    `base_mode` is "current" or the NAME that the board is believed to be in. On a board that is only observed a conf
    that says nothing is a warning. Raises NotSupportedError, BrokenError (a file that does not parse), UsageError
    (another NAME).
    """
    identity = read_identity(host.sysfs)
    file = find_board_file(identity)
    if file is None:
        raise unknown_board(host.sysfs, identity)
    domains = discover_domains(host.sysfs, emc_table_hz=file.emc_table_hz)
    told = release_warning(identity)
    notes = [Note(About.BOARD, told)] if told is not None else []
    notes += _fixed(host.sysfs, domains) + _conf_in_use(host.sysfs)
    try:
        conf, sha256 = _read_stock_conf(host.sysfs)
        model = _current_model(host, conf, notes)
        _check_name(model, conf, base_mode)
        base = base_mode_of(conf, model, domains, where=CONF_PATH)
    except (NotSupportedError, BrokenError) as error:
        if tuning_refusal(identity, file) is None:
            raise
        text = f"the caps are watched as they stood when jouled looked first: {error}"
        notes.append(Note(About.BOARD, text))
        conf, sha256 = NvpmodelConf((), (), 0), ""
        base = base_mode_as_is(host.sysfs, domains)
    base = _with_live_mask(host.sysfs, domains, base, notes)
    return Board(identity, file, domains, base, CONF_PATH, sha256, reference_of(base), conf, tuple(notes))


def fingerprint(board: Board, external_w: float) -> dict[str, str]:
    """What a winner is bound to (ARCHITECTURE 7): another value of any makes it stale."""
    return {
        "module": board.identity.module,
        "carrier": board.identity.carrier,
        "l4t": board.identity.l4t or "unknown",
        "conf_sha256": board.conf_sha256,
        "base_mode": board.base_mode.name,
        "external_w": f"{external_w:g}",
    }
