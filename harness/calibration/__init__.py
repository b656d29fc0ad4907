"""Microbenchmarks of the native engine on this machine, and the platform file that engine=simulated reads.

Nothing here looks at a sweep's results: steps, chunks, copies and streaming are timed one by one (`engine_steps`,
`copies`, `serving`), selections are recorded and replayed (`selections`), and each term is what fits its own timings
(`terms`).
"""
