"""How results are drawn: SVG, its colours and the numbers behind the charts.

The reports, the service, the monitor and notebooks share it. It knows arrays and texts only, not
the results themselves.
"""
