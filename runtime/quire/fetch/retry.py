"""Which answers are worth another try, and how long to wait for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import sleep, time
from typing import TypeVar

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from quire.errors import ModelError

T = TypeVar("T")

RETRY_AFTER_MAX_S = 300.0
BACKOFF_MAX_S = 60.0

_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504, 509, 529})


class TransientError(Exception):
    """Another try may succeed; `after_s` is what the server asked to wait."""

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


@dataclass(frozen=True)
class Patience:
    """`attempts` in a row without a byte gained end the download. `sleep` and `say` are the test's to replace."""

    attempts: int
    say: Callable[[str], None]
    sleep: Callable[[float], None] = sleep

    def __call__(self, what: str, work: Callable[[], T]) -> T:
        """Run `work` until it raises no TransientError; raises ModelError when patience ends."""
        backoff = wait_random_exponential(multiplier=1, max=BACKOFF_MAX_S)

        def wait(state: RetryCallState) -> float:
            return max(backoff(state), _after_s(state) * (1 + 0.1 * random.random()))

        def tell(state: RetryCallState) -> None:
            pause = state.next_action.sleep if state.next_action is not None else 0.0
            self.say(f"{what}: {_error(state)}; attempt {state.attempt_number + 1} of {self.attempts} in {pause:.0f} s")

        retrying = Retrying(
            retry=retry_if_exception_type(TransientError),
            stop=stop_after_attempt(self.attempts),
            wait=wait,
            before_sleep=tell,
            sleep=self.sleep,
            reraise=True,
        )
        try:
            return retrying(work)
        except TransientError as exc:
            raise ModelError(f"{what}: gave up after {self.attempts} attempts: {exc}") from exc


def checked(response: httpx.Response, refusal: Callable[[int], str]) -> None:
    """Raises TransientError or ModelError for a status of 400 and above. `refusal(status)` says what would help."""
    status = response.status_code
    if status < 400:
        return
    where = f"{response.url.host} answered {status} {response.reason_phrase}".rstrip()
    if status in _TRANSIENT:
        raise TransientError(where, retry_after_s(response.headers.get("Retry-After")))
    raise ModelError(f"{where} for {response.url.path}: {refusal(status)}")


def retry_after_s(value: str | None) -> float:
    """Seconds of a Retry-After header, a number or a date, up to five minutes; 0 where it says nothing."""
    if value is None:
        return 0.0
    try:
        wanted = float(value) if value.strip().isdigit() else parsedate_to_datetime(value).timestamp() - time()
    except ValueError:
        return 0.0
    return min(max(wanted, 0.0), RETRY_AFTER_MAX_S)


def _error(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None


def _after_s(state: RetryCallState) -> float:
    error = _error(state)
    return error.after_s if isinstance(error, TransientError) else 0.0
