"""nescio inside other tools, one module each."""
