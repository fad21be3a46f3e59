"""Reading and writing of files: atomic replacement, tables, tensors, kinds of files."""
