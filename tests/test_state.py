"""What the daemon shows is plain JSON with every key, whatever is known."""

from __future__ import annotations

import json

from jouled.errors import BusyError, JouledError, NotPermittedError
from jouled.state import Conflict, Failed, InForce, Next, Peer, Refused, Source, State, Status, Winner
from jouletune.space import PowerMode

MODE = PowerMode(12, 1_497_600_000, 918_000_000, 2_133_000_000)


def test_a_status_of_which_nothing_is_known_has_every_key() -> None:
    plain = Status(State.IDLE, 1.0, 2.0).as_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert (plain["schema"], plain["state"], plain["next"]) == (1, "idle", {"text": "", "due_wall_s": None})
    assert [name for name in ("board", "in_force", "winner", "job", "last_job", "readings") if plain[name]] == []
    assert plain["counters"]["jobs"] == {}


def test_each_mode_stands_beside_its_name() -> None:
    in_force = InForce(Source.WINNER, MODE, "capped", 5.0, verified=True)
    winner = Winner(MODE, "capped", "detector", "0123456789ab", 4.0, 0.033, 95.0, saving_interval=(0.1, 0.2))
    plain = Status(State.WAITING, 1.0, 2.0, in_force=in_force, winner=winner, next=Next("apply", 9.0)).as_json()
    assert plain["in_force"]["name"] == plain["winner"]["name"] == "12-1497.6-918-2133"
    assert plain["in_force"]["source"] == "winner"
    assert plain["winner"]["saving_interval"] == [0.1, 0.2]
    assert plain["winner"]["mode"]["emc_hz"] == 2_133_000_000


def test_errors_of_the_face_end_the_cli_with_their_own_codes() -> None:
    errors: list[tuple[JouledError, int]] = [
        (Conflict("a job runs", job="0123456789ab"), BusyError.exit_code),
        (Refused("observe"), NotPermittedError.exit_code),
        (Failed("no", kind="ApplyError", exit_code=10), 10),
    ]
    assert [error.exit_code for error, _ in errors] == [code for _, code in errors]


def test_a_peer_is_named_by_number_and_name() -> None:
    assert str(Peer(1000, 1000, 7, "pepe", may_change=True)) == "uid 1000 (pepe)"
