"""Files that somebody else may have made, and files of ours that must never be half there."""
