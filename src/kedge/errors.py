"""Errors that a user can act on; anything else that escapes is a bug and keeps its traceback."""


class KedgeError(Exception):
    """One sentence: the file or option, what was expected, and what to do."""


class EntitlementError(KedgeError):
    """A method reached for something that it is not allowed to see."""


def require(condition: bool, message: str) -> None:
    """Raise KedgeError with this message unless the condition holds."""
    if not condition:
        raise KedgeError(message)
