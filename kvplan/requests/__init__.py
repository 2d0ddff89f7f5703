"""From a workload to its requests, in tokens and in order of arrival.

Workload ──> sessions ──────────────────────> arrivals ──> RequestSpec ──> Schedule ──> Request
             texts, synthetic, traced: what    when each    ready to be     when it     of the
             is asked, turn after turn         comes        built           is due      engine
"""
