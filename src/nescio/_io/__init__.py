"""Reading and writing of files: paths, tables, data frames, tensors."""
