"""The harness's error tree. Every message is one clear sentence with its remedy; the command line prints it and exits 1.

HarnessError
├── UsageError        the caller gave a bad flag, file or environment: fix the input
├── PrerequisiteError the machine lacks something: install it or use another provider
├── CommandError      a program failed: its command, exit status and last lines are in the message
├── DeadlineError     a wait ran out: what was awaited and where the log is
└── StateError        no cluster, or not in the state the call needs
"""


class HarnessError(Exception):
    """Base of everything the harness raises on purpose."""


class UsageError(HarnessError):
    """A flag, file or environment variable is wrong."""


class PrerequisiteError(HarnessError):
    """The machine lacks a program, a right or a kernel feature."""


class CommandError(HarnessError):
    """A program exited with a status other than 0."""


class DeadlineError(HarnessError):
    """What was awaited did not happen in time."""


class StateError(HarnessError):
    """There is no cluster, or it is not in the state that the call needs."""
