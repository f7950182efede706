-- SPDX-License-Identifier: Apache-2.0
-- For wrk: one JSON object at the end. Latencies in microseconds; requests are those whose answer was read.
done = function(summary, latency, requests)
	local failed = 0
	for _, count in pairs(summary.errors) do
		failed = failed + count
	end
	io.write(string.format(
		'\n{"requests": %d, "seconds": %.6f, "failed": %d, "p50_us": %.1f, "p90_us": %.1f, "p95_us": %.1f, ' ..
		'"p99_us": %.1f, "p999_us": %.1f, "mean_us": %.1f, "max_us": %.1f}\n',
		summary.requests, summary.duration / 1e6, failed, latency:percentile(50), latency:percentile(90),
		latency:percentile(95), latency:percentile(99), latency:percentile(99.9), latency.mean, latency.max))
end
