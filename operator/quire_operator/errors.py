"""Errors of the operator; the class tells the reconcile loop what to do.

    OperatorError
    ├── SettingsError     the start is refused: a QUIRE_OPERATOR_* variable has a bad value
    ├── SpecError         one LLMDeployment is not acceptable; it becomes a condition and waits for the next edit
    ├── ApplyError        the API server refused a child; it becomes a condition and is tried again with back-off
    ├── PluginError       `kubectl llmd` cannot do what was asked; it ends with this sentence
    └── NotLeadingError   another operator holds the lease; the look ends, and is no failure

What the API server answers otherwise, or does not answer, is one line of the log; everything else is a fault of this program, logged with its
trace. Both are tried again with back-off.
Every message says what, where, and what would help, in one line.
"""

from __future__ import annotations


class OperatorError(Exception):
    """Base of all errors this package raises on purpose."""


class SettingsError(OperatorError):
    """A setting of the operator is unknown or out of bounds; the message names the variable."""


class SpecError(OperatorError):
    """An LLMDeployment cannot be understood; the message names the field, the value and the remedy."""


class ApplyError(OperatorError):
    """The API server refused a child object; the message names the object and carries the server's sentence."""


class PluginError(OperatorError):
    """A command of `kubectl llmd` makes no sense or cannot be done; the message says why and what would help."""


class NotLeadingError(OperatorError):
    """This process must not write: it does not hold the lease, or not any more."""
