"""How fast is it here, and compared with what: every contender in a process of its own."""
