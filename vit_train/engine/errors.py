"""What an error of a library says, in one line."""


def reason(error: Exception) -> str:
    """Return the first line of the error's message, or the kind of error if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
