"""The paper's experiments: data sets, networks, training, benchmarks and reports."""
