"""Errors and warnings that a user can act on.

Any other error that escapes is a bug and keeps its traceback.
"""

LONGEST_MESSAGE = 2000  # characters; a path alone may have 4096


class KedgeError(Exception):
    """One sentence: the file or option, what was expected, and what to do."""

    def __str__(self) -> str:
        text, half = super().__str__(), LONGEST_MESSAGE // 2 - 1
        return text if len(text) <= LONGEST_MESSAGE else f"{text[:half]}…{text[-half:]}"


class KedgeWarning(UserWarning):
    """Something in the given images that can spoil a model; commands print it as a problem."""


class EntitlementError(KedgeError):
    """A method reached for something that it is not allowed to see."""


class NotFiniteError(KedgeError):
    """A model gives scores that are infinite or no numbers."""


class NameTakenError(KedgeError):
    """A new file was to get a name that another one has, which is kept."""


def require(condition: bool, message: str) -> None:
    """Raise KedgeError with this message unless the condition holds."""
    if not condition:
        raise KedgeError(message)
