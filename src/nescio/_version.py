"""The version, where everything that writes files can reach it."""

__version__ = "0.1.0"
