"""Tests with other libraries, which the extra `interop` installs: `pytest -m interop`."""
