"""Pure reporting: from what was seen and decided to conditions, phase, events. No I/O, no clock of its own."""

from quire_operator.status.events import Event, events_between
from quire_operator.status.facts import AdapterReading, Facts, Reading, Verification
from quire_operator.status.problems import Problem, problem_of
from quire_operator.status.report import answers_everywhere, build_status, invalid_status

__all__ = [
    "AdapterReading",
    "Event",
    "Facts",
    "Problem",
    "Reading",
    "Verification",
    "answers_everywhere",
    "build_status",
    "events_between",
    "invalid_status",
    "problem_of",
]
