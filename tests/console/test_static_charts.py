"""Charts without JavaScript: one scale for all lines, and axes that say what it is."""

import re

import pytest

from payonce.console.charts import nice_top, segments, short, static_chart
from payonce.testing import OpenStage
from tests.console.renewals import park
from tests.console.visitor import console, visiting

LINES = (("done", "done", "good"), ("failed", "failed", "bad"))


@pytest.mark.parametrize(
    ("values", "top"), [([], 2), ([0], 2), ([1], 2), ([3], 5), ([10], 10), ([11], 20), ([49], 50), ([51], 100)]
)
def test_the_scale_ends_at_a_round_number_above_every_value(values: list[int], top: int) -> None:
    assert nice_top(values) == top


def test_all_lines_are_drawn_on_one_scale() -> None:
    found = static_chart({"at": [0, 60, 120], "done": [100, 50, 0], "failed": [10, None, 5]}, LINES)
    assert (found.top, found.middle, found.first, found.last) == ("100", "50", "00:00", "00:02")
    done, failed = found.lines
    assert done.segments == ["0.0,0.0 60.0,12.0 120.0,24.0"]
    assert failed.segments == ["0.0,21.6 0.0,21.6", "120.0,22.8 120.0,22.8"], "a tenth of the other, with a gap"


def test_amounts_are_scaled_by_their_units_and_days_by_their_names() -> None:
    found = static_chart({"at": [0, 86_400], "done": [150_000, 120_000], "failed": [0, 0]}, LINES, 100, "day")
    assert (found.top, found.first, found.last) == ("2k", "01-01", "01-02")
    assert found.lines[0].segments == ["0.0,6.0 120.0,9.6"]
    assert static_chart({"at": [], "done": [], "failed": []}, LINES).first == ""
    assert short(1_500_000) == "1.5M"
    assert segments([], 2) == []


async def test_a_page_has_one_drawing_for_each_chart_with_its_axes(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await park(s)
        page = (await visitor.get("/")).text
        assert len(re.findall(r'<svg class="spark still"', page)) == len(re.findall(r"data-chart=", page)) == 3
        for axis in ("top", "middle", "zero", "first", "last"):
            assert len(re.findall(rf'<span class="axis {axis}">[^<]+</span>', page)) == 3, axis
