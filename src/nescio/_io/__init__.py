"""Files: written whole or not at all, tables and tensors in and out."""
