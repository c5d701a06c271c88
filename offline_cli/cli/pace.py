"""How fast one stage of work goes, in figures and in words; only the stage's own time counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from offline_cli.progress import Progress

__all__ = ["Pace"]


@dataclass(slots=True)
class Pace:
    """How fast one stage goes, from its first report to its last; going back to fewer `done` restarts it."""

    began: float  # seconds of a monotonic clock, at the first report
    first: int  # `done` of the first report
    last: Progress
    seen: float = 0.0  # when the last report came: what follows it, another stage or none, is no time of this one

    def follow(self, report: Progress, now: float) -> None:
        """Take the stage's next report."""
        if report.done < self.last.done:
            self.began, self.first = now, report.done
        self.last, self.seen = report, now

    def rate(self) -> float | None:
        """Units per second; None before there are two reports to compare."""
        done, seconds = self.last.done - self.first, self.seen - self.began
        return done / seconds if done > 0 and seconds > 0 else None

    def seconds_left(self) -> float | None:
        """Seconds to the end at this rate; None where rate or total is unknown."""
        rate, total = self.rate(), self.last.total
        return max(total - self.last.done, 0) / rate if rate and total is not None else None

    def count(self) -> str:
        """`1,200/5,000 updates`."""
        of = "" if self.last.total is None else f"/{self.last.total:,}"
        return f"{self.last.done:,}{of} {self.last.unit}"

    def left(self) -> list[str]:
        """`12 s left`, where that is known and not nothing."""
        left = self.seconds_left()
        return [f"{_duration(left)} left"] if left is not None and left > 0 else []

    def figures(self) -> list[str]:
        """`350 updates/s`, `loss 0.12`: the rate, then the report's own figures. A rate among those is the better one."""
        rate, unit = self.rate(), f"{self.last.unit}/s"
        named = {name: _short(value) for name, value in self.last.figures.items()}
        rates = [f"{named.pop(unit)} {unit}"] if unit in named else [f"{_short(rate)} {unit}"] if rate is not None else []
        return rates + [f"{name} {value}" for name, value in named.items()]


def _short(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
