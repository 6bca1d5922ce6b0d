"""Safe reading of untrusted files, and writing that never leaves half a file."""
