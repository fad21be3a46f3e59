"""Reading and writing of files: paths, tables, tensors, TOML."""
