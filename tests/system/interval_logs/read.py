"""Prints the intervals of a log as JSON lines, as the package hdrhistogram (PyPI) reads them."""

import json
import sys

from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

reader = HistogramLogReader(sys.argv[1], HdrHistogram(1, 3_600_000_000_000, 3))
while True:
    interval = reader.get_next_interval_histogram()
    if interval is None:
        break
    quantiles = [interval.get_value_at_percentile(p) for p in (50, 99, 99.9)]
    print(json.dumps({
        "tag": interval.get_tag(),
        "begin_ms": round(interval.get_start_time_stamp()),
        "end_ms": round(interval.get_end_time_stamp()),
        "count": interval.get_total_count(),
        "min": interval.get_min_value(),
        "max": interval.get_max_value(),
        "quantiles": quantiles,
    }))
