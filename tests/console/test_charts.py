"""What charts draw: points that stand for real minutes."""

from datetime import UTC, datetime, timedelta

from payonce.console.live import WINDOWS, columns
from payonce.console.template_environment import age, document, duration, spark
from payonce.engine.monitoring.history import MINUTES_MAX, QueueMinute

START = datetime(2026, 1, 31, 12, tzinfo=UTC)


def minutes(*runs: int, depths: tuple[int | None, ...] = ()) -> list[QueueMinute]:
    return [
        QueueMinute(
            START + timedelta(minutes=number),
            success=count,
            retry=count // 2,
            waiting=depths[number] if depths else None,
            oldest_s=depths[number] if depths else None,
        )
        for number, count in enumerate(runs)
    ]


def test_the_minute_that_runs_is_left_out_of_the_runs() -> None:
    found = columns(minutes(10, 20, 3))
    assert found["success"] == [10, 20, None]
    assert found["retry"] == [5, 10, None]
    assert found["errors"] == [0, 0, None], "a retry may still end well"
    assert found["at"][-1] - found["at"][0] == 120


def test_a_point_of_several_minutes_is_their_average_their_last_depth_and_greatest_age() -> None:
    found = columns(minutes(10, 20, 30, 40, 50, 3, depths=(1, 9, 2, None, 7, None)), step=3)
    assert found["success"] == [20, 45]
    assert found["waiting"] == [2, 7]
    assert found["oldest_s"] == [9, 7]


def test_nothing_seen_is_a_gap_and_not_a_zero() -> None:
    assert columns(minutes(1, 1))["waiting"] == [None, None]
    assert columns([]) == {
        "at": [],
        "success": [],
        "retry": [],
        "errors": [],
        "waiting": [],
        "delayed": [],
        "lying": [],
        "oldest_s": [],
    }


def test_every_window_is_kept_and_divides_evenly() -> None:
    assert all(window.minutes <= MINUTES_MAX and window.minutes % window.step == 0 for window in WINDOWS.values())


def test_a_small_line_stays_within_its_box() -> None:
    points = [tuple(map(float, point.split(","))) for point in spark([0, None, 5, 10]).split()]
    assert [x for x, _ in points] == [0.0, 40.0, 80.0, 120.0]
    assert points[0][1] == points[1][1] == 23.0
    assert points[3][1] == 1.0
    assert spark([]) == ""
    assert spark([0]) == "0.0,23.0"


def test_times_read_as_people_say_them() -> None:
    assert duration(7_500) == "2 h 5 min"
    assert duration(0.012) == "12 ms"
    assert duration(0) == "0 s"
    assert duration(None) == "–"
    assert age(START - timedelta(minutes=3, seconds=20), START) == "3 min ago"
    assert age(START + timedelta(hours=2), START) == "in 2 h"
    assert age(START, START) == "now"


def test_a_long_document_is_cut_and_says_so() -> None:
    assert document({"note": "x" * 100_000}).endswith("… cut here")
    assert document({"password": "hunter2hunter2"}).count("[redacted]") == 1
