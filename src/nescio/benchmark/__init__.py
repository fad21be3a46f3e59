"""The paper's evaluation as data: specs, result lines, tables beside the paper's, and the report.

A spec (one TOML file) names data, network, detectors and seeds. `run` carries it out; what it finds
are result lines, and `Evidence` for the figures. Tables and the report are rendered from these.
"""
