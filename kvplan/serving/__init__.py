"""Points on a server of somebody else's: vLLM, SGLang, or whatever speaks their streaming completions over HTTP.

command ──> address ──> load ──────────────> Figures
started     ready       requests, streamed   latencies from the streams, the rest from /metrics
"""
