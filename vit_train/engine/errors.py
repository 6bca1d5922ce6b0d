"""What an error of a library says, in one line."""


def reason(error: Exception) -> str:
    """Return the first line of the message, and the second one if the first ends with a colon.

    An error without a message is named by its kind.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = lines[:2] if lines and lines[0].endswith(":") else lines[:1]
    return " ".join(told)[:300] or type(error).__name__
