// Prints the intervals of a log as JSON lines, as the package hdr-histogram-js (npm) reads them.
const fs = require("fs");
const { HistogramLogReader } = require("hdr-histogram-js");

const reader = new HistogramLogReader(fs.readFileSync(process.argv[2], "utf-8"), 64);
for (let it = reader.nextIntervalHistogram(); it; it = reader.nextIntervalHistogram()) {
  console.log(JSON.stringify({
    tag: it.tag,
    begin_ms: Math.round(it.startTimeStampMsec),
    end_ms: Math.round(it.endTimeStampMsec),
    count: it.totalCount,
    min: it.minNonZeroValue,
    max: it.maxValue,
    quantiles: [50, 99, 99.9].map((p) => it.getValueAtPercentile(p)),
  }));
}
