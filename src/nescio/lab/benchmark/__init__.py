"""Benchmarks: specs, result lines, and tables that compare them with the paper's.

A spec is a TOML file that names data, network, detectors and seeds. `run_benchmark` runs it and
writes result lines, and the `Evidence` that the report draws its figures from.
"""
